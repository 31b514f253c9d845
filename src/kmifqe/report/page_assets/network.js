// A Q network, evaluated at one of the chosen states over many actions.
function decodeFloats(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  const view = new DataView(bytes.buffer);
  const floats = new Float32Array(bytes.length / 4);
  for (let i = 0; i < floats.length; i += 1) floats[i] = view.getFloat32(4 * i, true);
  return floats;
}

class Network {
  constructor(surface, seed, points, dimension) {
    const numbers = decodeFloats(seed.numbers);
    let place = 0;
    const take = (count) => { place += count; return numbers.subarray(place - count, place); };
    const [width, ...further] = surface.sizes;
    Object.assign(this, { width, dimension, unit: seed.unit, shift: surface.shift, scale: surface.scale, tanh: surface.hidden === 'tanh' });
    this.box = surface.action_box;  // to which actions are cut, as in training; null: they are not
    this.actionRows = take(dimension * width);
    this.fromStates = take(points * width);
    this.layers = [];
    let inputs = width;
    for (const outputs of further) {
      this.layers.push({ inputs, outputs, w: take(inputs * outputs), b: take(outputs), sum: new Float64Array(outputs) });
      inputs = outputs;
    }
    this.metrics = seed.metrics ? take(points * dimension * dimension) : null;
    this.first = new Float64Array(width);
  }

  // Q at a state and an action, normalised as the value is.
  q(point, action) {
    let u = this.first;
    for (let k = 0; k < this.width; k += 1) u[k] = this.fromStates[point * this.width + k];
    for (let j = 0; j < this.dimension; j += 1) {
      const cut = this.box ? clamp(action[j], this.box[0][j], this.box[1][j]) : action[j];
      const z = (cut - this.shift[j]) / this.scale[j];
      const row = j * this.width;
      for (let k = 0; k < this.width; k += 1) u[k] += z * this.actionRows[row + k];
    }
    for (const layer of this.layers) {
      const { inputs, outputs, w, b, sum } = layer;
      for (let k = 0; k < outputs; k += 1) sum[k] = b[k];
      for (let i = 0; i < inputs; i += 1) {
        const active = this.tanh ? Math.tanh(u[i]) : Math.max(u[i], 0);
        if (active === 0) continue;
        const row = i * outputs;
        for (let k = 0; k < outputs; k += 1) sum[k] += active * w[row + k];
      }
      u = sum;
    }
    return u[0] * this.unit;
  }

  // The metric's 2×2 block for two action dimensions: the kernel's slice through the target's action.
  metric(point, i, j) {
    const d = this.dimension, at = point * d * d;
    const entry = (a, b) => this.metrics[at + a * d + b];
    return [entry(i, i), entry(i, j), entry(j, j)];
  }
}
