// Elements are made from text, never from markup: what a record says cannot become code.
const SVG = 'http://www.w3.org/2000/svg';

// How the page calls and colours each estimator, in the page's order: [[name, {label, color}], ...].
const LOOKS = new Map(JSON.parse(document.getElementById('looks').textContent));
const DASHES = ['', '10 3 2 3', '2 3', '7 4', '14 3'];  // beside colours, for readers who cannot tell these apart

const nameOf = (estimator) => LOOKS.get(estimator).label;
const classOf = (estimator) => LOOKS.get(estimator).color;
const dashOf = (estimator) => DASHES[[...LOOKS.keys()].indexOf(estimator) % DASHES.length];

function make(namespace, name, attributes, children) {
  const element = namespace ? document.createElementNS(namespace, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const el = (name, attributes, ...children) => make(null, name, attributes, children);
const svg = (name, attributes, ...children) => make(SVG, name, attributes, children);

// Three decimals, or three significant digits where these would say nothing or too much; a true minus sign.
function shown(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return '–';
  const size = Math.abs(x);
  const plain = size === 0 || (size >= 0.01 && size < 1e5);
  return (plain ? x.toFixed(3) : x.toPrecision(3)).replace(/-/g, '−');
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}\u00a0%`;

function mean(values) {
  const known = values.filter((x) => x !== null);
  return known.length ? known.reduce((sum, x) => sum + x, 0) / known.length : null;
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

// Draw now, again whenever the width changes, and at a sheet's width for the printer.
const PRINTED_WIDTH = 680;
const mounted = [];
function mount(host, draw) {
  let width = 0;
  const redraw = () => draw(width || host.clientWidth || PRINTED_WIDTH, host.clientHeight);
  new ResizeObserver(() => {
    if (host.clientWidth && host.clientWidth !== width) { width = host.clientWidth; redraw(); }
  }).observe(host);
  width = host.clientWidth;
  if (width) redraw();
  mounted.push({ host, draw, redraw });
  return redraw;
}
