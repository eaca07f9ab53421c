// Pictures of numbers: a colour for each pixel, and a text for those who do not see it.

const VALUES = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const DIFFERENCES = [[33, 102, 172], [146, 197, 222], [247, 247, 247], [244, 165, 130], [178, 24, 43]];
const LEAST_SHARE = 0.3; // One chunk of a million is seen, too.
const MISSING = [128, 128, 128];

function colour(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((value, i) => value + (stops[low + 1][i] - value) * (place - low));
}

export function numbers(text) {
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  return new Float64Array(bytes.buffer);
}

/** A number as text, by what it is: a time, a duration in seconds, or any other. */
export function shown(value, kind) {
  if (value === null || Number.isNaN(value)) return "missing";
  if (kind === "time") return time(value);
  if (kind === "seconds") return `${shown(value)} s`;
  return Number.isInteger(value) ? value.toString() : value.toPrecision(6).replace(/\.?0+$/, "");
}

function time(seconds) {
  const date = new Date(seconds * 1000);
  if (Number.isNaN(date.getTime())) return `${seconds} s since 1970`;
  return date.toISOString().replace("T", " ").replace(/(:00)?\.000Z$/, "").replace("Z", "");
}

function paint(canvas, width, height, pixel) {
  canvas.width = width;
  canvas.height = height;
  const wide = parseInt(getComputedStyle(canvas).width, 10);
  canvas.style.height = `${Math.max(24, Math.min(512, Math.round((wide * height) / width)))}px`;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    image.data.set([...pixel(i), 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

/** The values of the first and the last colour; of differences, zero is in the middle. */
export function limits(picture, isDifference) {
  const [low, high] = [picture.lowest ?? 0, picture.highest ?? 0];
  const most = Math.max(Math.abs(low), Math.abs(high));
  return isDifference ? [-most, most] : [low, high];
}

/** Draw all colours, from the lowest value to the highest. */
export function drawScale(canvas, isDifference) {
  paint(canvas, 256, 1, (i) => colour(isDifference ? DIFFERENCES : VALUES, i / 255));
  canvas.style.height = "";
}

/** Draw values, or differences around zero. Returns the numbers. */
export function drawValues(canvas, picture, isDifference) {
  const values = numbers(picture.values);
  const [low, high] = limits(picture, isDifference);
  const span = high - low || 1;
  const stops = isDifference ? DIFFERENCES : VALUES;
  const middle = isDifference && high === 0;
  paint(canvas, picture.width, picture.height, (i) =>
    Number.isFinite(values[i]) ? colour(stops, middle ? 0.5 : (values[i] - low) / span) : MISSING);
  return values;
}

/** Draw how much of each part of the grid is written. */
export function drawChunks(canvas, map) {
  const [height, width] = map.cells;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const stops = dark ? [[40, 48, 57], [125, 184, 242]] : [[233, 237, 241], [20, 88, 156]];
  // Few cells are drawn large, with lines between them.
  const scale = Math.max(1, Math.floor(192 / Math.max(width, height)));
  const isLined = scale > 4;
  const [line] = stops;
  paint(canvas, width * scale, height * scale, (i) => {
    const [x, y] = [i % (width * scale), Math.floor(i / (width * scale))];
    if (isLined && (x % scale === scale - 1 || y % scale === scale - 1)) return line;
    const share = map.share[Math.floor(y / scale) * width + Math.floor(x / scale)];
    return colour(stops, share > 0 ? Math.max(share, LEAST_SHARE) : 0);
  });
}
