// Values with intervals, trajectories, histograms.
function toggle(label, pressed, onChange, sample) {
  const button = el('button', { type: 'button', class: sample ? 'toggle' : 'toggle option', 'aria-pressed': String(pressed) }, sample, label);
  button.addEventListener('click', () => {
    const now = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', String(now));
    onChange(now);
  });
  return button;
}

function lineSample(estimator) {
  return svg('svg', { class: `sample ${classOf(estimator)}`, viewBox: '0 0 22 8', 'aria-hidden': 'true' },
    svg('line', { x1: 0, x2: 22, y1: 4, y2: 4, 'stroke-dasharray': dashOf(estimator) }));
}

// Labels above vertical lines, moved up a tier where they would lie on another: [{...label, x, tier}], left to right.
function inTiers(labels, width) {
  const ends = [];
  return [...labels].sort((a, b) => a.at - b.at).map((label) => {
    const half = 3.6 * label.label.length;  // pixels, at 12 px a letter
    const x = Math.min(Math.max(label.at, half), width - half);
    let tier = ends.findIndex((end) => end < x - half);
    if (tier < 0) tier = ends.length;
    ends[tier] = x + half + 6;
    return { ...label, x, tier };
  });
}

// One row for each: dot, interval, seeds; `references` are values known otherwise.
function valuesChart(host, readout, rows, references) {
  const named = (row) => row.label || nameOf(row.name);
  const lines = rows.map((row) => `${named(row)}: ${shown(row.value)}${row.interval
    ? `, ${percent(row.interval[2])} interval ${shown(row.interval[0])} to ${shown(row.interval[1])}` : ''}`);
  readout.textContent = references.map((r) => `${r.label} ${shown(r.value)}`).join(' · ') || ' ';
  mount(host, (width, height) => {
    const narrow = width < 560;
    const box = { left: narrow ? 12 : 210, right: width - 16, top: 22, bottom: height - 44 };
    const known = [...references.map((r) => r.value)];
    for (const row of rows) known.push(row.value, ...row.values, ...(row.interval || []).slice(0, 2));
    const numbers = known.filter((x) => x !== null && x !== undefined);
    const low = Math.min(...numbers), high = Math.max(...numbers), margin = 0.06 * (high - low) || 0.5;
    const x = scale(low - margin, high + margin, box.left, box.right);
    const nice = niceTicks(low - margin, high + margin, width / 110);
    const labels = inTiers(references.map((r) => ({ ...r, at: x(r.value) })), width);
    box.top += 14 * Math.max(0, ...labels.map((label) => label.tier));
    const root = canvasOf(width, height, `${host.dataset.label}. ${lines.join('; ')}.`);
    drawAxes(root, box, { scale: x, ticks: nice.ticks, text: (t) => tickText(t, nice), label: 'V̂, value per step' }, { ticks: [] });
    const step = (box.bottom - box.top) / rows.length;
    const middle = (i) => box.top + (i + (narrow ? 0.68 : 0.5)) * step;
    for (const reference of labels) {
      // On a phone a row's name stands above its bar: the line leaves it out.
      const beside = rows.map((_, i) => [middle(i) - 8, middle(i) + 10]);
      const spans = narrow ? [[box.top - 6, box.top + 4], ...beside] : [[box.top - 6, box.bottom]];
      for (const [y1, y2] of spans) root.append(svg('line', { x1: reference.at, x2: reference.at, y1, y2, class: 'reference' }));
      root.append(svg('text', { x: reference.x, y: box.top - 10 - 14 * reference.tier, class: 'reference-name', 'text-anchor': 'middle' },
        reference.label));
    }
    rows.forEach((row, i) => {
      const y = middle(i);
      const text = named(row);
      const most = narrow ? 40 : 24;
      root.append(svg('text', { x: narrow ? box.left : box.left - 14, y: narrow ? y - 12 : y + 4, class: 'row-name',
        'text-anchor': narrow ? 'start' : 'end' }, text.length > most ? `${text.slice(0, most - 1)}…` : text));
      const group = svg('g', { class: classOf(row.name) }, svg('title', null, lines[i]));
      if (row.interval) group.append(svg('line', { x1: x(row.interval[0]), x2: x(row.interval[1]), y1: y, y2: y, class: 'interval' }));
      for (const value of row.values) {
        if (value !== null) group.append(svg('line', { x1: x(value), x2: x(value), y1: y - 7, y2: y + 7, class: 'seed' }));
      }
      if (row.value !== null) group.append(svg('circle', { cx: x(row.value), cy: y, r: 6.5, class: 'dot' }));
      else group.append(svg('text', { x: box.left + 4, y: y + 4, class: 'row-name' }, 'no value'));
      root.append(group);
    });
    host.replaceChildren(root);
  });
}

// Records of one quantity: {name, share of the steps, mean, by seed}.
function seriesOf(estimates, quantity, per) {
  return estimates.filter((e) => e.series[quantity] && e.recorded.length).map((e) => ({
    name: e.name,
    x: e.recorded.map((step) => step / e.steps),
    steps: e.recorded,
    seeds: e.seeds.map((_, k) => e.series[quantity].map((row) => (row[k] === null ? null : row[k] / per))),
    mean: e.series[quantity].map((row) => { const m = mean(row); return m === null ? null : m / per; }),
  }));
}

function limits(series, references, whole) {
  const values = references.map((r) => r.value);
  for (const s of series) {
    const begin = whole ? 0 : Math.floor((2 * s.x.length) / 3);
    for (const seed of s.seeds) values.push(...seed.slice(begin).filter((v) => v !== null));
  }
  if (!values.length) return [0, 1];
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const margin = (whole ? 0.06 : 0.25) * (high - low) || 0.1 * Math.abs(high) || 1;
  return [low - margin, high + margin];
}

function pathOf(xs, ys, x, y) {
  let path = '', pen = 'M';
  ys.forEach((value, i) => {
    if (value === null) { pen = 'M'; return; }
    path += `${pen}${x(xs[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = 'L';
  });
  return path;
}

let clips = 0;
function lineChart(host, controls, readout, series, options) {
  const references = options.references || [];
  const hidden = new Set();
  let seedsShown = true, whole = Boolean(options.whole), position = 100;
  clips += 1;
  const clip = `clip${clips}`;
  const describe = (p) => {
    const parts = series.filter((s) => !hidden.has(s.name)).map((s) => {
      let i = s.x.findIndex((share) => share >= p / 100 - 1e-9);
      if (i < 0) i = s.x.length - 1;
      return `${nameOf(s.name)} ${options.show(s.mean[i])}`;
    });
    return `At ${p} % of the steps: ${parts.join(' · ')}`;
  };
  const redraw = mount(host, (width, height) => {
    const box = { left: 56, right: width - 14, top: 26, bottom: height - 48 };
    const visible = series.filter((s) => !hidden.has(s.name));
    let [low, high] = limits(visible.length ? visible : series, references, whole);
    if (options.floor !== undefined) low = Math.max(low, options.floor);
    const x = scale(0, 1, box.left, box.right), y = scale(low, high, box.bottom, box.top);
    const nice = niceTicks(low, high, 5);
    const root = canvasOf(width, height, host.dataset.label);
    root.append(svg('defs', null, svg('clipPath', { id: clip },
      svg('rect', { x: box.left, y: box.top - 2, width: box.right - box.left, height: box.bottom - box.top + 2 }))));
    drawAxes(root, box,
      { scale: x, ticks: width < 480 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1], text: (t) => `${100 * t} %`, label: 'share of the steps' },
      { scale: y, ticks: nice.ticks, text: (t) => tickText(t, nice), label: options.label });
    const marks = svg('g', { 'clip-path': `url(#${clip})` });
    const names = svg('g', { 'clip-path': `url(#${clip})` });  // above all lines, which would cross them
    const ordered = references.map((r) => ({ ...r, at: y(r.value) })).sort((a, b) => a.at - b.at);
    ordered.forEach((reference, i) => {
      const below = i > 0 && reference.at - ordered[i - 1].at < 16;
      marks.append(svg('line', { x1: box.left, x2: box.right, y1: reference.at, y2: reference.at, class: 'reference' }));
      names.append(svg('text', { x: box.right - 4, y: reference.at + (below ? 14 : -5), 'text-anchor': 'end', class: 'reference-name' },
        reference.label));
    });
    for (const s of visible) {
      const group = svg('g', { class: classOf(s.name) });
      if (seedsShown && s.seeds.length > 1) for (const seed of s.seeds) group.append(svg('path', { d: pathOf(s.x, seed, x, y), class: 'thin' }));
      group.append(svg('path', { d: pathOf(s.x, s.mean, x, y), class: 'thick', 'stroke-dasharray': dashOf(s.name) }));
      marks.append(group);
    }
    root.append(marks, names);
    const focused = host.contains(document.activeElement);
    attachProbe(root, box, {
      count: 101, start: () => position, moved: (p) => { position = p; }, at: (p) => x(p / 100),
      nearest: (pixel) => Math.round(100 * x.back(pixel)), describe, readout, label: host.dataset.label,
    });
    host.replaceChildren(root);
    if (focused) root.focus();
  });
  for (const s of series) {
    controls.append(toggle(nameOf(s.name), true, (on) => {
      if (on) hidden.delete(s.name); else hidden.add(s.name);
      redraw();
    }, lineSample(s.name)));
  }
  if (series.some((s) => s.seeds.length > 1)) controls.append(toggle('Single seeds', true, (on) => { seedsShown = on; redraw(); }));
  if (!options.whole) controls.append(toggle('Whole range', false, (on) => { whole = on; redraw(); }));
}

// Shares by bin, outlined; `series` are {label, color, dash, shares}, `lines` are dashed verticals.
function histogramChart(host, controls, readout, edges, series, options) {
  for (const s of series) {
    controls.append(el('span', { class: 'key' }, svg('svg', { class: `sample ${s.color}`, viewBox: '0 0 22 8', 'aria-hidden': 'true' },
      svg('line', { x1: 0, x2: 22, y1: 4, y2: 4, 'stroke-dasharray': s.dash })), s.label));
  }
  const bins = edges.length - 1;
  let position = series[0].shares.indexOf(Math.max(...series[0].shares));
  const describe = (i) => `${options.range(i)}: ${series.map((s) => `${s.label} ${percent(s.shares[i])}`).join(' · ')}`;
  mount(host, (width, height) => {
    const box = { left: 56, right: width - 14, top: 26, bottom: height - 48 };
    const highest = Math.max(...series.flatMap((s) => s.shares));
    const inside = Math.max(...series.flatMap((s) => s.shares.slice(1, -1)));
    const cut = options.mayCut && series.some((s) => s.shares[0] === highest) && highest > 4 * inside && inside > 0;  // a heap at the edge would flatten all the rest
    const top = (cut ? 2 * inside : highest * 1.08) || 1;
    const x = scale(edges[0], edges[bins], box.left, box.right), y = scale(0, top, box.bottom, box.top);
    const nice = niceTicks(0, top, 4);
    const root = canvasOf(width, height, host.dataset.label);
    drawAxes(root, box, { scale: x, ticks: options.ticks(width), text: options.text, label: options.label },
      { scale: y, ticks: nice.ticks, text: (t) => `${Number((100 * t).toFixed(2))} %`, label: 'share of the rows' });
    for (const s of series) {
      let path = `M${x(edges[0])} ${y(0)}`;
      s.shares.forEach((share, i) => { path += `V${y(Math.min(share, top)).toFixed(1)}H${x(edges[i + 1]).toFixed(1)}`; });
      path += `V${y(0)}`;
      root.append(svg('g', { class: s.color }, svg('path', { d: path, class: 'area' }),
        svg('path', { d: path, class: 'outline', 'stroke-dasharray': s.dash })));
    }
    if (cut) root.append(svg('text', { x: box.left + 14, y: box.top + 10, class: 'reference-name' }, `↑ ${series.map((s) => percent(s.shares[0])).join(' and ')}`));
    for (const line of options.lines || []) {
      if (line.at < edges[0] || line.at > edges[bins]) continue;
      root.append(svg('line', { x1: x(line.at), x2: x(line.at), y1: box.top, y2: box.bottom, class: 'reference' }));
      root.append(svg('text', { x: x(line.at) + 4, y: box.top + 10, class: 'reference-name' }, line.label));
    }
    attachProbe(root, box, {
      count: bins, start: () => position, moved: (p) => { position = p; }, at: (i) => x((edges[i] + edges[i + 1]) / 2),
      nearest: (pixel) => Math.floor(((x.back(pixel) - edges[0]) / (edges[bins] - edges[0])) * bins),
      describe, readout, label: host.dataset.label,
    });
    host.replaceChildren(root);
  });
}
