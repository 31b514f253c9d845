// Colours of a heat map, and the lines of equal Q on it.
// Stops of cividis: even in lightness, and the same to every kind of colour vision.
const HEAT = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120],
  [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56]];

function heatColor(share) {
  const at = clamp(share, 0, 1) * (HEAT.length - 1);
  const i = Math.min(Math.floor(at), HEAT.length - 2);
  return HEAT[i].map((from, k) => from + (at - i) * (HEAT[i + 1][k] - from));
}

// Paint a grid (rows from bottom to top) onto a canvas, interpolated so that its corners are the grid's.
function paintHeat(canvas, grid, side, low, high) {
  const size = canvas.width, context = canvas.getContext('2d');
  const image = context.createImageData(size, size);
  for (let py = 0; py < size; py += 1) {
    const gy = ((size - 1 - py) / (size - 1)) * (side - 1), y0 = Math.min(Math.floor(gy), side - 2), fy = gy - y0;
    for (let px = 0; px < size; px += 1) {
      const gx = (px / (size - 1)) * (side - 1), x0 = Math.min(Math.floor(gx), side - 2), fx = gx - x0;
      const a = y0 * side + x0;
      const q = (1 - fy) * ((1 - fx) * grid[a] + fx * grid[a + 1]) + fy * ((1 - fx) * grid[a + side] + fx * grid[a + side + 1]);
      const [r, g, b] = heatColor((q - low) / (high - low || 1));
      const at = 4 * (py * size + px);
      image.data[at] = r; image.data[at + 1] = g; image.data[at + 2] = b; image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

// Marching squares: the pieces of the line where the grid equals `level`, in grid units.
function contourPath(grid, side, level, toX, toY) {
  let path = '';
  for (let y = 0; y < side - 1; y += 1) {
    for (let x = 0; x < side - 1; x += 1) {
      const corners = [grid[y * side + x], grid[y * side + x + 1], grid[(y + 1) * side + x + 1], grid[(y + 1) * side + x]];
      const places = [[x, y], [x + 1, y], [x + 1, y + 1], [x, y + 1]];
      const crossings = [];
      for (let k = 0; k < 4; k += 1) {
        const m = (k + 1) % 4, a = corners[k] - level, b = corners[m] - level;
        if ((a < 0) === (b < 0)) continue;
        const t = a / (a - b);
        crossings.push([toX(places[k][0] + t * (places[m][0] - places[k][0])), toY(places[k][1] + t * (places[m][1] - places[k][1]))]);
      }
      for (let k = 0; k + 1 < crossings.length; k += 2) {
        path += `M${crossings[k].map((v) => v.toFixed(1)).join(' ')}L${crossings[k + 1].map((v) => v.toFixed(1)).join(' ')}`;
      }
    }
  }
  return path;
}

// Points of the ellipse zᵀ A z = radius², and the ends of its two axes, for A = [a, b; b, c].
function ellipse([a, b, c], radius) {
  const half = (a + c) / 2, root = Math.hypot((a - c) / 2, b);
  const angle = 0.5 * Math.atan2(2 * b, a - c);  // of the eigenvector of the larger eigenvalue
  const lengths = [radius / Math.sqrt(half + root), radius / Math.sqrt(Math.max(half - root, 1e-12))];
  const axes = [[Math.cos(angle), Math.sin(angle)], [-Math.sin(angle), Math.cos(angle)]]
    .map(([x, y], k) => [x * lengths[k], y * lengths[k]]);
  const points = [];
  for (let k = 0; k <= 72; k += 1) {
    const t = (2 * Math.PI * k) / 72;
    points.push([Math.cos(t) * axes[0][0] + Math.sin(t) * axes[1][0], Math.cos(t) * axes[0][1] + Math.sin(t) * axes[1][1]]);
  }
  return { points, axes };
}
