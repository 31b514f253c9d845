// Scales and axes.
function scale(low, high, from, to) {
  const span = high - low || 1;
  const at = (x) => from + ((x - low) / span) * (to - from);
  at.back = (pixel) => low + ((pixel - from) / (to - from)) * span;
  return at;
}

function niceTicks(low, high, about) {
  const step0 = (high - low || 1) / Math.max(about, 1);
  const power = 10 ** Math.floor(Math.log10(step0));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= step0 * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) ticks.push(k * step);
  return { ticks, decimals: clamp(Math.ceil(-Math.log10(step) - 1e-9), 0, 12), step };
}

function tickText(x, nice) {
  const largest = Math.max(...nice.ticks.map(Math.abs));
  const text = largest >= 1e5 || nice.step < 1e-4 ? x.toPrecision(3) : x.toFixed(nice.decimals);
  return (Object.is(Number(text), -0) ? text.slice(1) : text).replace(/-/g, '−');
}

// Lines and labels of both axes; `x` and `y` are {scale, ticks, text, label}.
function drawAxes(root, box, x, y) {
  const group = svg('g', { class: 'axes', 'aria-hidden': 'true' });
  for (const tick of y.ticks) {
    const at = y.scale(tick);
    group.append(svg('line', { x1: box.left, x2: box.right, y1: at, y2: at, class: 'grid' }));
    group.append(svg('text', { x: box.left - 8, y: at + 4, 'text-anchor': 'end' }, y.text(tick)));
  }
  for (const tick of x.ticks) {
    const at = x.scale(tick);
    group.append(svg('line', { x1: at, x2: at, y1: box.bottom, y2: box.bottom + 5, class: 'tick' }));
    group.append(svg('text', { x: at, y: box.bottom + 19, 'text-anchor': at > box.right - 4 ? 'end' : 'middle' }, x.text(tick)));
  }
  group.append(svg('line', { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: 'axis' }));
  if (x.label) {
    group.append(svg('text', { x: (box.left + box.right) / 2, y: box.bottom + 38, 'text-anchor': 'middle', class: 'label' }, x.label));
  }
  if (y.label) group.append(svg('text', { x: box.left - 44, y: box.top - 10, class: 'label' }, y.label));
  root.append(group);
}

function canvasOf(width, height, label) {
  return svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label });
}

// One position along a chart, moved by pointer or keys and read out in words.
function attachProbe(root, box, options) {
  const { count, start, at, nearest, describe, readout, label } = options;
  const line = svg('line', { class: 'probe', y1: box.top, y2: box.bottom, visibility: 'hidden' });
  root.append(line);
  root.setAttribute('tabindex', '0');
  root.setAttribute('role', 'slider');
  root.setAttribute('aria-label', label);
  root.setAttribute('aria-valuemin', '0');
  root.setAttribute('aria-valuemax', String(count - 1));
  let position = start();
  const move = (to, say) => {
    position = clamp(to, 0, count - 1);
    options.moved(position);
    const x = at(position);
    line.setAttribute('x1', x);
    line.setAttribute('x2', x);
    line.setAttribute('visibility', say ? 'visible' : 'hidden');
    const words = describe(position);
    root.setAttribute('aria-valuenow', String(position));
    root.setAttribute('aria-valuetext', words);
    readout.textContent = words;
  };
  root.addEventListener('pointermove', (event) => {
    const area = root.getBoundingClientRect();
    move(nearest(((event.clientX - area.left) / area.width) * root.viewBox.baseVal.width), true);
  });
  root.addEventListener('focus', () => move(position, true));
  root.addEventListener('blur', () => line.setAttribute('visibility', 'hidden'));
  root.addEventListener('pointerleave', () => { if (document.activeElement !== root) line.setAttribute('visibility', 'hidden'); });
  root.addEventListener('keydown', (event) => {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
    if (event.key in steps) move(position + steps[event.key], true);
    else if (event.key === 'Home') move(0, true);
    else if (event.key === 'End') move(count - 1, true);
    else return;
    event.preventDefault();
  });
  move(position, false);
}
