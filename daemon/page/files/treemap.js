// A squarified treemap (Bruls, Huizing, van Wijk): areas are values, and tiles as square as they can be.

export function treemap(values, width, height) {
  const out = [];
  const total = values.reduce((a, b) => a + b, 0);
  if (!(total > 0) || width < 1 || height < 1) return out;
  const scale = (width * height) / total;
  let x = 0,
    y = 0,
    w = width,
    v = height;
  let i = 0;
  while (i < values.length) {
    const side = Math.min(w, v);
    const row = [];
    let area = 0,
      worst = Infinity;
    for (; i < values.length; i++) {
      const next = values[i] * scale;
      const sum = area + next;
      const largest = Math.max(next, row[0] ?? next);
      const ratio = Math.max((side * side * largest) / (sum * sum), (sum * sum) / (side * side * next));
      if (row.length && ratio > worst) break;
      row.push(next);
      area = sum;
      worst = ratio;
    }
    const thick = area / side;
    let along = 0;
    for (const a of row) {
      const long = a / thick;
      out.push(w >= v ? { x, y: y + along, w: thick, h: long } : { x: x + along, y, w: long, h: thick });
      along += long;
    }
    if (w >= v) {
      x += thick;
      w -= thick;
    } else {
      y += thick;
      v -= thick;
    }
  }
  return out;
}
