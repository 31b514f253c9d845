// Wires one page: every run's charts, theme, tabs, copying, printing.
const explorers = [];

function numbersOf(identity) { return JSON.parse(document.getElementById(identity).textContent); }

function wireRun(article) {
  const numbers = numbersOf(`${article.id}-numbers`);
  const part = (chart, name) => article.querySelector(`[data-${name}="${chart}"]`);
  const places = (chart) => [part(chart, 'chart'), part(chart, 'controls'), part(chart, 'readout')];
  const has = (chart) => part(chart, 'chart') !== null;
  valuesChart(part('values', 'chart'), part('values', 'readout'), numbers.estimates, numbers.references);
  const truth = numbers.references.filter((r) => r.label === 'truth');
  lineChart(...places('trajectory'), seriesOf(numbers.estimates, 'value', 1), { label: 'V̂, value per step', references: truth, show: shown });
  if (has('bandwidth')) {
    lineChart(...places('bandwidth'), seriesOf(numbers.estimates, 'h', 1), { label: 'bandwidth h', show: shown, floor: 0, whole: true });
  }
  if (has('ess')) {
    lineChart(...places('ess'), seriesOf(numbers.estimates, 'ess', numbers.rows || 1), { label: 'effective rows, share of all', show: percent, floor: 0, whole: true });
  }
  if (has('weights')) wireWeights(places('weights'), numbers.weights);
  if (has('overlap')) wireOverlap(places('overlap'), numbers.overlap);
  const place = article.querySelector('[data-explorer]');
  if (place) explorers.push(explorerOf(place, numbers.landscape));
}

function wireWeights(places, weights) {
  const { edges, clip } = weights[0];
  const series = weights.filter((w) => w.edges.length === edges.length)
    .map((w) => ({ label: nameOf(w.name), color: classOf(w.name), dash: dashOf(w.name), shares: w.shares[0] }));
  const power = (k) => (k === 0 ? '1' : `1e${k}`).replace('-', '−');
  const size = (log) => (log < -2 || log >= 4 ? `1e${log.toFixed(1)}` : Number((10 ** log).toPrecision(2)).toString()).replace('-', '−');
  const whole = [];
  for (let k = Math.ceil(edges[0]); k <= edges[edges.length - 1]; k += 1) whole.push(k);
  histogramChart(...places, edges, series, {
    label: 'importance weight', text: power,
    ticks: (width) => whole.filter((k) => k % (width < 420 ? 4 : 2) === 0),
    range: (i) => (i === 0 ? `Weight below ${size(edges[1])}` : `Weight ${size(edges[i])} to ${size(edges[i + 1])}`),
    mayCut: true,
    lines: clip ? [{ at: Math.log10(clip[0] || 1e-300), label: '' }, { at: Math.log10(clip[1]), label: `clip ${clip[1]}` }] : [],
  });
}

function wireOverlap(places, { edges, shares }) {
  const nice = niceTicks(edges[0], edges[edges.length - 1], 6);
  const last = edges.length - 2;
  histogramChart(...places, edges, [
    { label: 'logged actions', color: 'c-logged', dash: '5 3', shares: shares[0] },
    { label: 'target’s actions', color: 'c-target', dash: '', shares: shares[1] },
  ], {
    label: 'distance, in usual logged ones', ticks: () => nice.ticks, text: (t) => tickText(t, nice),
    range: (i) => `Distance ${edges[i].toFixed(2)} ${i === last ? 'or more' : `to ${edges[i + 1].toFixed(2)}`}`,
  });
}

function wireTheme() {
  const button = document.getElementById('theme'), root = document.documentElement;
  const wish = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : wish.matches);
  const label = () => {
    button.setAttribute('aria-pressed', String(isDark()));
    button.textContent = isDark() ? 'Light' : 'Dark';
    button.setAttribute('aria-label', 'Dark colours');
  };
  button.addEventListener('click', () => { root.dataset.theme = isDark() ? 'light' : 'dark'; label(); });
  wish.addEventListener('change', label);
  label();
}

function wireTabs() {
  const tabs = [...document.querySelectorAll('[data-tab]')], runs = [...document.querySelectorAll('.run')];
  if (!tabs.length) return;
  const select = (i, focus) => {
    tabs.forEach((tab, k) => {
      tab.setAttribute('aria-selected', String(k === i));
      tab.tabIndex = k === i ? 0 : -1;
      runs[k].hidden = k !== i;
    });
    if (focus) tabs[i].focus();
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener('click', () => select(i, false));
    tab.addEventListener('keydown', (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      select((to + tabs.length) % tabs.length, true);
    });
  });
  select(0, false);
}

function copyText(text, source) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text).catch(() => selectText(source));
  selectText(source);
  return Promise.resolve();
}

function selectText(source) {
  const range = document.createRange();
  range.selectNodeContents(source);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
  document.execCommand('copy');
}

function wireCopying() {
  for (const button of document.querySelectorAll('[data-copy]')) {
    const source = button.parentElement.querySelector('code');
    button.addEventListener('click', () => copyText(source.textContent, source).then(() => {
      button.textContent = 'Copied';
      setTimeout(() => { button.textContent = 'Copy'; }, 1500);
    }));
  }
}

function wirePrinting() {
  let opened = [];
  document.getElementById('print').addEventListener('click', () => window.print());
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')];
    for (const folded of opened) folded.open = true;
    for (const explorer of explorers) explorer.finish();
    for (const { host, draw } of mounted) draw(host.closest('.grid') ? PRINTED_WIDTH / 2 - 28 : PRINTED_WIDTH, host.clientHeight || 260);
  });
  addEventListener('afterprint', () => {
    for (const folded of opened) folded.open = false;
    for (const { redraw } of mounted) redraw();
  });
}

const comparison = document.querySelector('[data-chart="comparison"]');
if (comparison) {
  const references = document.getElementById('comparison-references') ? numbersOf('comparison-references') : [];
  valuesChart(comparison, document.querySelector('[data-readout="comparison"]'), numbersOf('comparison-numbers'), references);
}
for (const article of document.querySelectorAll('.run')) wireRun(article);
wireTheme();
wireTabs();
wireCopying();
wirePrinting();
document.documentElement.dataset.ready = 'true';
