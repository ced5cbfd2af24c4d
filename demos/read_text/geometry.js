// The smallest rectangle around some points, at any angle.

/** @typedef {{ x: number, y: number }} Point */
/**
 * A rectangle: its centre, the unit vector along its width, and its sizes.
 * @typedef {{ x: number, y: number, along: Point, width: number, height: number }} Rectangle
 */

const cross = (/** @type {Point} */ o, /** @type {Point} */ a, /** @type {Point} */ b) => (a.x - o.x) * (b.y - o.y) - (a.y - o.y) * (b.x - o.x);

/** The convex hull, by Andrew's monotone chain (1979). @param {Point[]} points */
function hullOf(points) {
  const sorted = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  const half = (/** @type {Point[]} */ ordered) => {
    /** @type {Point[]} */
    const chain = [];
    for (const point of ordered) {
      while (chain.length > 1 && cross(chain[chain.length - 2], chain[chain.length - 1], point) <= 0) chain.pop();
      chain.push(point);
    }
    return chain.slice(0, -1);
  };
  return [...half(sorted), ...half(sorted.reverse())];
}

/**
 * The smallest rectangle around the points. One of its sides lies on a side of their hull. Its width is the direction that is
 * nearer to the horizontal.
 * @param {Point[]} points
 * @returns {Rectangle}
 */
export function smallestRectangle(points) {
  const hull = hullOf(points);
  /** @type {Rectangle | null} */
  let best = null;
  for (const [index, from] of hull.entries()) {
    const to = hull[(index + 1) % hull.length];
    const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
    let along = { x: (to.x - from.x) / length, y: (to.y - from.y) / length };
    if (Math.abs(along.x) < Math.abs(along.y)) along = { x: along.y, y: -along.x };
    if (along.x < 0) along = { x: -along.x, y: -along.y };
    const [left, right] = range(hull.map(({ x, y }) => x * along.x + y * along.y));
    const [top, bottom] = range(hull.map(({ x, y }) => y * along.x - x * along.y));
    const [width, height] = [right - left, bottom - top];
    if (best && best.width * best.height <= width * height) continue;
    const [u, v] = [(left + right) / 2, (top + bottom) / 2];
    best = { x: u * along.x - v * along.y, y: u * along.y + v * along.x, along, width, height };
  }
  return best ?? { ...points[0], along: { x: 1, y: 0 }, width: 0, height: 0 };
}

/** @param {number[]} values */
const range = (values) => [Math.min(...values), Math.max(...values)];

/** The corners, from the upper left one and clockwise. @param {Rectangle} rectangle @returns {Point[]} */
export function cornersOf({ x, y, along, width, height }) {
  const [ux, uy] = [(along.x * width) / 2, (along.y * width) / 2];
  const [vx, vy] = [(-along.y * height) / 2, (along.x * height) / 2];
  return [
    { x: x - ux - vx, y: y - uy - vy },
    { x: x + ux - vx, y: y + uy - vy },
    { x: x + ux + vx, y: y + uy + vy },
    { x: x - ux + vx, y: y - uy + vy },
  ];
}
