// The Q-landscape explorer: one logged state, one or two action dimensions, estimators side by side.
const SIDE = 41;  // grid points along a dimension
const CURVE = 161;
const SLICE_MS = 24;  // of computing before the page may breathe
const CAPTION = 'Circle: the target’s action. Square: the logged action. Ellipse and cross: the learned kernel at one bandwidth, '
  + 'long where Q hardly curves. Good: Q is smooth inside the ellipse, which reaches far only along directions that do not matter. '
  + 'Bad: Q curves sharply inside it (the kernel mixes in other values), or the target’s action sits on a peak far from any logged action.';

function explorerOf(host, landscape) {
  const d = landscape.low.length, points = landscape.points;
  const networks = new Map();
  const networkOf = (surface) => {
    const seed = surface.seeds[Math.min(view.seed, surface.seeds.length - 1)];
    const key = `${surface.estimator}/${seed.seed}`;
    if (!networks.has(key)) networks.set(key, new Network(surface, seed, points.length, d));
    return { network: networks.get(key), seed, key };
  };
  // At first one estimator with a kernel is shown beside one without, where there are both.
  const preferred = [true, false].map((kernel) => landscape.surfaces.find((s) => s.seeds[0].metrics === kernel)).filter(Boolean);
  const usual = points.reduce((best, p, k) => (p.first && Math.abs(p.rank - 0.5) < Math.abs(points[best].rank - 0.5) ? k : best), 0);
  const view = {
    point: usual, i: 0, j: d > 1 ? 1 : null, seed: 0, same: false, probe: null,
    hidden: new Set(preferred.length === 2 ? landscape.surfaces.filter((s) => !preferred.includes(s)).map((s) => s.estimator) : []),
  };
  const cache = new Map();
  let ticket = 0;

  const facts = el('p', { class: 'quiet' });
  const readout = el('output', { class: 'readout', 'aria-live': 'polite' }, ' ');
  const panels = el('div', { class: 'panels' });
  const drawn = landscape.surfaces.map((surface) => panelOf(surface));
  panels.append(...drawn.map((panel) => panel.root));
  const controls = el('div', { class: 'controls' });
  host.append(controls, facts, panels, readout, el('p', { class: 'caption' }, CAPTION));

  const pick = (label, options, value, onChange) => {
    const select = el('select', null, ...options.map(([v, text]) => el('option', { value: v, selected: v === value }, text)));
    select.addEventListener('change', () => { onChange(select.value); update(true); });
    controls.append(el('label', null, el('span', null, label), select));
    return select;
  };
  const dimensions = [...Array(d).keys()].map((k) => [String(k), `action ${k + 1}`]);
  pick('Logged state', points.map((p, k) => [String(k), pointName(p)]), String(usual), (v) => { view.point = Number(v); });
  if (d > 1) {
    // Choosing the other axis's dimension swaps the two.
    const across = pick('Across', dimensions, '0', (v) => {
      if (Number(v) === view.j) { view.j = view.i; up.value = String(view.j); }
      view.i = Number(v);
    });
    const up = pick('Up', [...dimensions, ['', 'nothing: a curve']], '1', (v) => {
      if (v !== '' && Number(v) === view.i) { view.i = view.j === null ? (view.i + 1) % d : view.j; across.value = String(view.i); }
      view.j = v === '' ? null : Number(v);
    });
  }
  const seeds = Math.max(...landscape.surfaces.map((s) => s.seeds.length));
  if (seeds > 1) pick('Seed', [...Array(seeds).keys()].map((k) => [String(k), seedName(k)]), '0', (v) => { view.seed = Number(v); });
  if (landscape.surfaces.length > 1) {
    for (const surface of landscape.surfaces) {
      controls.append(toggle(nameOf(surface.estimator), !view.hidden.has(surface.estimator), (on) => {
        if (on) view.hidden.delete(surface.estimator); else view.hidden.add(surface.estimator);
        update(false);
      }, el('i', { class: `swatch ${classOf(surface.estimator)}`, 'aria-hidden': 'true' })));
    }
    controls.append(toggle('Same scale', false, (on) => { view.same = on; update(false); }));
  }

  function seedName(k) { return String(landscape.surfaces[0].seeds[k] ? landscape.surfaces[0].seeds[k].seed : k); }
  function pointName(p) {
    const worth = p.rank < 0.2 ? 'poor' : p.rank > 0.8 ? 'good' : 'usual';
    return `${p.first ? 'first' : 'later'} state, ${worth} (better than ${percent(p.rank)})`;
  }
  // The plane shown: its dimensions, and their ranges with room for actions logged outside the box.
  function plane() {
    const point = points[view.point];
    const range = (k) => {
      const near = [landscape.low[k], landscape.high[k], point.target[k], point.logged[k]].filter((x) => x !== null);
      const low = Math.min(...near), high = Math.max(...near), pad = 0.06 * (high - low || 1);
      return [low - pad, high + pad];
    };
    const curve = view.j === null;
    return { point, curve, i: view.i, j: curve ? null : view.j, x: range(view.i), y: curve ? null : range(view.j) };
  }
  function* computed(surface, shownPlane) {
    const { network, key } = networkOf(surface);
    const { i, j, x, y, curve, point } = shownPlane;
    const name = `${key}/${view.point}/${i}/${j}`;
    if (cache.has(name)) return cache.get(name);
    const at = view.point, action = point.target.slice(), side = curve ? CURVE : SIDE;
    const grid = new Float64Array(curve ? CURVE : SIDE * SIDE);
    for (let row = 0; row < (curve ? 1 : SIDE); row += 1) {
      if (!curve) action[j] = y[0] + (row / (side - 1)) * (y[1] - y[0]);
      for (let column = 0; column < side; column += 1) {
        action[i] = x[0] + (column / (side - 1)) * (x[1] - x[0]);
        grid[row * side + column] = network.q(at, action);
      }
      yield null;
    }
    const result = { grid, low: grid.reduce((a, b) => Math.min(a, b)), high: grid.reduce((a, b) => Math.max(a, b)) };
    if (cache.size > 200) cache.clear();
    cache.set(name, result);
    return result;
  }
  const visible = () => drawn.filter((panel) => !view.hidden.has(panel.surface.estimator));

  function* work(shownPlane) {
    const results = [];
    for (const panel of visible()) results.push([panel, yield* computed(panel.surface, shownPlane)]);
    return results;
  }
  function show(results, shownPlane) {
    const low = Math.min(...results.map(([, r]) => r.low)), high = Math.max(...results.map(([, r]) => r.high));
    for (const [panel, r] of results) panel.draw(r.grid, view.same ? low : r.low, view.same ? high : r.high, shownPlane);
    panels.setAttribute('aria-busy', 'false');
    say();
  }
  // All but the pictures; done at once, so that the pictures appear in place.
  function arrange({ point, curve, i, j }, moved) {
    if (moved) view.probe = [point.target[i], curve ? null : point.target[j]];
    for (const panel of drawn) panel.root.hidden = view.hidden.has(panel.surface.estimator);
    facts.textContent = factsOf(point);
  }
  // Compute a slice at a time, unless the printer is waiting; only the latest wish is drawn.
  function update(moved, atOnce) {
    ticket += 1;
    const mine = ticket, shownPlane = plane(), steps = work(shownPlane);
    arrange(shownPlane, moved);
    panels.setAttribute('aria-busy', 'true');
    const go = () => {
      if (mine !== ticket) return;
      const until = performance.now() + SLICE_MS;
      for (;;) {
        const step = steps.next();
        if (step.done) { show(step.value, shownPlane); return; }
        if (!atOnce && performance.now() > until) { setTimeout(go, 0); return; }
      }
    };
    go();
  }
  function factsOf(point) {
    const list = (values) => `(${values.slice(0, 8).map(shown).join(', ')}${values.length > 8 ? ', …' : ''})`;
    const logged = point.logged.includes(null) ? '' : ` · logged action ${list(point.logged)}`;
    return `State ${list(point.state)} · target’s action ${list(point.target)}${logged}`;
  }
  function say() {
    const { point, i, j, curve } = plane();
    const action = point.target.slice();
    action[i] = view.probe[0];
    if (!curve) action[j] = view.probe[1];
    const place = `action ${i + 1} = ${shown(action[i])}${curve ? '' : `, action ${j + 1} = ${shown(action[j])}`}`;
    const told = visible().map(({ surface }) => {
      const { network, seed } = networkOf(surface);
      let words = `${nameOf(surface.estimator)} Q ${shown(network.q(view.point, action))}`;
      if (network.metrics && seed.h) {
        const z = [i, curve ? i : j].map((k) => (action[k] - point.target[k]) / network.scale[k]);
        const [a, b, c] = network.metric(view.point, i, curve ? i : j);
        const square = curve ? a * z[0] ** 2 : a * z[0] ** 2 + 2 * b * z[0] * z[1] + c * z[1] ** 2;
        words += ` (${(Math.sqrt(square) / seed.h).toFixed(1)} bandwidths away)`;
      }
      return words;
    });
    readout.textContent = `At ${place}: ${told.join(' · ')}`;
    for (const panel of visible()) panel.mark();
  }

  function panelOf(surface) {
    const map = el('div', { class: 'map' }), range = el('p', { class: 'range' });
    const title = el('h3', null, el('i', { class: `swatch ${classOf(surface.estimator)}`, 'aria-hidden': 'true' }), nameOf(surface.estimator));
    const root = el('div', { class: 'panel' }, title, map, range);
    let marker = () => {};
    const size = 400, box = { left: 50, right: 392, top: 8, bottom: 350 };
    function draw(grid, low, high, shownPlane) {
      const { point, curve, i, j } = shownPlane;
      const { network, seed } = networkOf(surface);
      const x = scale(...shownPlane.x, box.left, box.right);
      const margin = 0.08 * (high - low) || 0.5;
      const span = curve ? [low - margin, high + margin] : shownPlane.y;
      const y = scale(...span, box.bottom, box.top);
      const niceX = niceTicks(...shownPlane.x, 4), niceY = niceTicks(...span, 4);
      const picture = svg('svg', { viewBox: `0 0 ${size} ${size}`, class: curve ? 'curve' : 'heat', tabindex: '0', role: 'application',
        'aria-label': `Q-landscape of ${nameOf(surface.estimator)}; arrow keys move the probe, Home returns to the target’s action` });
      const children = [];
      if (curve) {
        const xs = Array.from(grid, (_, k) => shownPlane.x[0] + (k / (grid.length - 1)) * (shownPlane.x[1] - shownPlane.x[0]));
        drawAxes(picture, box, axisOf(x, niceX, i), { scale: y, ticks: niceY.ticks, text: (t) => tickText(t, niceY) });
        drawBell(picture, network, seed, i, point, x);
        picture.append(svg('g', { class: classOf(surface.estimator) }, svg('path', { d: pathOf(xs, Array.from(grid), x, y), class: 'thick' })));
        for (const [kind, action] of [['target', point.target[i]], ['logged', point.logged[i]]]) {
          if (action !== null) picture.append(svg('line', { x1: x(action), x2: x(action), y1: box.top, y2: box.bottom, class: `${kind}-line` }));
        }
      } else {
        const canvas = el('canvas', { width: 180, height: 180, 'aria-hidden': 'true' });
        paintHeat(canvas, grid, SIDE, low, high);
        map.replaceChildren(canvas);
        const toX = (g) => box.left + (g / (SIDE - 1)) * (box.right - box.left), toY = (g) => box.bottom + (g / (SIDE - 1)) * (box.top - box.bottom);
        for (let k = 1; k < 9; k += 1) picture.append(svg('path', { d: contourPath(grid, SIDE, low + (k / 9) * (high - low), toX, toY), class: 'contour' }));
        drawBox(picture, x, y, i, j);
        drawKernel(picture, network, seed, i, j, point, x, y);
        if (point.logged[i] !== null) picture.append(svg('rect', { x: x(point.logged[i]) - 5, y: y(point.logged[j]) - 5, width: 10, height: 10, class: 'logged' }));
        picture.append(svg('circle', { cx: x(point.target[i]), cy: y(point.target[j]), r: 5.5, class: 'target' }));
        drawAxes(picture, box, axisOf(x, niceX, i), { scale: y, ticks: niceY.ticks, text: (t) => tickText(t, niceY), label: null });
        picture.append(svg('text', { class: 'label', transform: `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)`, 'text-anchor': 'middle' }, `action ${j + 1}`));
      }
      const cross = svg('g', { class: 'cross' });
      picture.append(cross);
      marker = () => {
        const px = x(view.probe[0]), py = curve ? null : y(view.probe[1]);
        cross.replaceChildren(svg('line', { x1: px, x2: px, y1: box.top, y2: box.bottom }),
          ...(curve ? [] : [svg('line', { x1: box.left, x2: box.right, y1: py, y2: py })]));
      };
      const focused = map.contains(document.activeElement);
      if (curve) map.replaceChildren(picture); else map.append(picture);
      listen(picture, x, curve ? null : y, shownPlane);
      if (focused) picture.focus();
      range.replaceChildren(...rangeOf(low, high, curve, seed));
    }
    const axisOf = (x, nice, i) => ({ scale: x, ticks: nice.ticks, text: (t) => tickText(t, nice), label: `action ${i + 1}` });
    return { root, surface, draw, mark: () => marker() };
  }

  function drawBox(picture, x, y, i, j) {
    const left = x(landscape.low[i]), right = x(landscape.high[i]), bottom = y(landscape.low[j]), top = y(landscape.high[j]);
    picture.append(svg('rect', { x: left, y: top, width: right - left, height: bottom - top, class: 'box' }));
  }
  function drawKernel(picture, network, seed, i, j, point, x, y) {
    if (!network.metrics || !seed.h) return;
    const shape = ellipse(network.metric(view.point, i, j), seed.h);
    const place = ([zi, zj]) => [x(point.target[i] + zi * network.scale[i]), y(point.target[j] + zj * network.scale[j])];
    const line = (list) => `M${list.map((p) => place(p).map((v) => v.toFixed(1)).join(' ')).join('L')}`;
    const axes = shape.axes.map((end) => line([[-end[0], -end[1]], end])).join('');
    clips += 1;
    const clip = `clip${clips}`;
    picture.append(svg('clipPath', { id: clip }, svg('rect', { x: 50, y: 8, width: 342, height: 342 })));
    picture.append(svg('g', { 'clip-path': `url(#${clip})` },
      svg('path', { d: `${line(shape.points)}Z${axes}`, class: 'kernel-halo' }), svg('path', { d: `${line(shape.points)}Z${axes}`, class: 'kernel' })));
  }
  function drawBell(picture, network, seed, i, point, x) {
    if (!network.metrics || !seed.h) return;
    const sigma = (seed.h / Math.sqrt(network.metric(view.point, i, i)[0])) * network.scale[i];
    let path = `M${x(point.target[i] - 3 * sigma)} 350`;
    for (let k = -30; k <= 30; k += 1) path += `L${x(point.target[i] + (k / 10) * sigma).toFixed(1)} ${(350 - 90 * Math.exp(-0.5 * (k / 10) ** 2)).toFixed(1)}`;
    picture.append(svg('path', { d: `${path}Z`, class: 'bell' }));
  }
  function rangeOf(low, high, curve, seed) {
    const bandwidth = seed.h ? ` · h ${shown(seed.h)}` : '';
    const value = `V̂ of seed ${seed.seed}: ${shown(seed.value)}${bandwidth}`;
    if (curve) return [value];
    const bar = svg('svg', { class: 'bar', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    for (let k = 0; k < 50; k += 1) {
      bar.append(svg('rect', { x: 2 * k, y: 0, width: 2.2, height: 6, fill: `rgb(${heatColor(k / 49).map(Math.round).join(',')})` }));
    }
    return [el('span', { class: 'scale' }, shown(low), bar, shown(high)), value];
  }
  function listen(picture, x, y, shownPlane) {
    const move = (to) => {
      view.probe = [clamp(to[0], ...shownPlane.x), y ? clamp(to[1], ...shownPlane.y) : null];
      say();
    };
    picture.addEventListener('pointermove', (event) => {
      const area = picture.getBoundingClientRect();
      const at = (pixel, from, length) => ((pixel - from) / length) * 400;
      move([x.back(at(event.clientX, area.left, area.width)), y ? y.back(at(event.clientY, area.top, area.height)) : null]);
    });
    picture.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[event.key];
      const { point, i, j } = shownPlane;
      if (event.key === 'Home') move([point.target[i], y ? point.target[j] : null]);
      else if (step) {
        const by = (range, s) => (s * (range[1] - range[0])) / (SIDE - 1);
        move([view.probe[0] + by(shownPlane.x, step[0]), y ? view.probe[1] + by(shownPlane.y, step[1]) : null]);
      } else return;
      event.preventDefault();
    });
  }

  arrange(plane(), true);
  say();
  let begun = false;
  const begin = (atOnce) => { if (!begun) { begun = true; update(true, atOnce); } };
  new IntersectionObserver((seen) => { if (seen.some((s) => s.isIntersecting)) begin(false); }, { rootMargin: '400px' }).observe(host);
  host.addEventListener('focusin', () => begin(false));
  return { finish: () => { if (!begun || panels.getAttribute('aria-busy') === 'true') { begun = true; update(false, true); } } };
}
