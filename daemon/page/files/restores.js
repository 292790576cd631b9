// Restores: those in progress, as they go on, and the last ones that are over.
import { h, svg, size, number, many, span, clock, at, changed, quoted } from './dom.js';

const ways = [
  ['hot', 'only', 'hot set', 'from the hot set'],
  ['demand', 'many', 'on demand', 'because a process waited for it'],
  ['sweep', 'few', 'swept', 'in the background'],
  ['images', 'two', 'read by CRIU', 'read by CRIU itself'],
];

// bandwidth gives bytes a second over the last second.
function bandwidth(list) {
  const last = list.at(-1);
  let i = list.length - 1;
  while (i > 0 && last.ms - list[i].ms < 1000) i--;
  const from = list[i];
  return last && last.ms > from.ms ? ((last.resident - from.resident) * 1000) / (last.ms - from.ms) : 0;
}

// course draws how the memory came: what is there above, bytes a second below.
function course(r, now, width) {
  const w = Math.max(width, 260),
    left = 64,
    right = 10,
    top = 66,
    middle = 166,
    low = 226,
    height = 248;
  const start = at(r.prepared).getTime();
  const end = Math.max(...r.samples.map((s) => s.ms), r.over ? 0 : now - start, 200);
  const x = (ms) => left + (w - left - right) * Math.min(Math.max(ms, 0) / end, 1);
  const y = (n) => middle - (middle - top) * (r.total > 0 ? Math.max(0, n) / r.total : 0);
  const out = svg('svg', {
    class: 'course',
    width: w,
    height,
    viewBox: `0 0 ${w} ${height}`,
    role: 'img',
    'aria-label': `Memory that is there over time: ${size(r.total - r.missing)} of ${size(r.total)} after ${span(end)}`,
  });
  const put = (...n) => out.append(...n);
  for (const part of [0, 0.5, 1]) {
    put(
      svg('line', { class: 'grid', x1: left, x2: w - right, y1: y(r.total * part), y2: y(r.total * part) }),
      svg('text', { x: left - 8, y: y(r.total * part) + 4, 'text-anchor': 'end' }, size(r.total * part)),
    );
  }
  const points = r.samples.map((s) => `${x(s.ms).toFixed(1)},${y(s.resident).toFixed(1)}`);
  if (points.length) {
    const lastX = x(r.samples.at(-1).ms).toFixed(1),
      firstX = x(r.samples[0].ms).toFixed(1);
    put(
      svg('polygon', { class: 'area', points: `${firstX},${middle} ${points.join(' ')} ${lastX},${middle}` }),
      svg('polyline', { class: 'line', points: points.join(' ') }),
    );
  }
  // Bars of equal time: samples may lie closer or further apart. Each is made of what was brought why.
  const parts = ways.slice(0, 3);
  const n = Math.max(Math.min(Math.floor((w - left - right) / 8), r.samples.length - 1), 1);
  let j = 0;
  const brought = (ms) => {
    while (j < r.samples.length - 2 && r.samples[j + 1].ms < ms) j++;
    const a = r.samples[j],
      b = r.samples[j + 1];
    const f = !b || ms <= a.ms ? 0 : Math.min((ms - a.ms) / (b.ms - a.ms || 1), 1);
    return parts.map(([k]) => a[k] + (b ? (b[k] - a[k]) * f : 0));
  };
  const bars = [];
  if (r.samples.length > 1) {
    for (let i = 0; i < n; i++) {
      const a = brought((end * i) / n),
        b = brought((end * (i + 1)) / n);
      bars.push(b.map((v, k) => (Math.max(0, v - a[k]) * n * 1000) / end));
    }
  }
  const fastest = Math.max(...bars.map((v) => v.reduce((a, b) => a + b, 0)), 1);
  bars.forEach((speeds, i) => {
    let y0 = low;
    speeds.forEach((v, k) => {
      const tall = ((low - middle - 18) * v) / fastest;
      if (tall < 0.3) return;
      y0 -= tall;
      put(
        svg('rect', {
          fill: `var(--${parts[k][1]})`,
          x: x((end * i) / n) + 0.5,
          y: y0,
          width: Math.max((w - left - right) / n - 1.5, 1),
          height: tall,
        }),
      );
    });
  });
  put(
    svg('line', { class: 'grid', x1: left, x2: w - right, y1: low, y2: low }),
    svg('text', { x: left - 8, y: middle + 24, 'text-anchor': 'end' }, `${size(fastest)}/s`),
    svg('text', { x: left - 8, y: low + 3, 'text-anchor': 'end' }, '0'),
    svg('text', { x: left, y: height - 6 }, '0'),
    svg('text', { x: w - right, y: height - 6, 'text-anchor': 'end' }, span(end)),
  );
  const ends = [-1e9, -1e9, -1e9, -1e9];
  for (const [t, words] of [
    [r.first_fault, 'first fault'],
    [r.finished, 'processes run'],
    [r.hot_done, 'hot set there'],
    [r.resident, 'all memory there'],
  ]
    .filter(([m]) => at(m))
    .sort((a, b) => at(a[0]) - at(b[0]))) {
    const ms = at(t) - start,
      px = x(ms),
      text = `${words} ${span(ms)}`,
      long = text.length * 6.2;
    const flip = px + long > w - right;
    const from = flip ? px - long : px;
    let line = ends.findIndex((e) => e < from);
    if (line < 0) line = 3;
    ends[line] = from + long + 10;
    put(
      svg(
        'g',
        { class: 'mark' },
        svg('line', { x1: px, x2: px, y1: 8 + line * 14, y2: low }),
        svg('text', { x: flip ? px - 4 : px + 4, y: 12 + line * 14, 'text-anchor': flip ? 'end' : 'start' }, text),
      ),
    );
  }
  return out;
}

function said(r) {
  const there = at(r.resident);
  if (r.killed?.length)
    return ['bad', `${many(r.killed.length, 'process', 'processes')} could not be given their memory and were ended.`];
  if (r.poisoned?.length)
    return ['bad', `${many(r.poisoned.length, 'range')} of memory cannot be read; touching it raises SIGBUS.`];
  if (there) return ['', `All memory was there after ${span(there - at(r.prepared))}.`];
  if (r.over) return ['', 'It ended before all memory was there.'];
  return ['', at(r.finished) ? 'The processes run; their memory follows.' : 'CRIU restores the processes.'];
}

function card(r, now, width, store) {
  const there = Math.max(r.total - r.missing, 0),
    speed = r.over ? 0 : bandwidth(r.samples);
  const took = (r.over ? at(r.resident) || at(r.ended) : now) - at(r.prepared);
  const average = took > 0 ? (there * 1000) / took : 0;
  const [kind, words] = said(r);
  const got = ways.map(([k, c, short, long]) => [r.bytes[k] || 0, c, short, long]);
  return h(
    'section',
    { class: 'card run', 'aria-label': `Restore of ${r.checkpoint}` },
    h(
      'div',
      { class: 'title' },
      h('h2', {}, r.checkpoint),
      !r.over && h('span', { class: 'tag' }, 'in progress'),
      r.profile && h('span', { class: 'tag' }, 'with a profile'),
      r.adopted && h('span', { class: 'tag warn' }, 'taken over from a daemon that was killed'),
      h('span', { class: 'soft' }, `begun ${clock(r.prepared)}`),
    ),
    h(
      'p',
      { class: kind ? `notice ${kind}` : '' },
      words,
      kind && h('span', {}, ' ', h('code', {}, `gpucr-fs verify ${quoted(store)}`), ' tells what is damaged.'),
    ),
    h(
      'div',
      {
        class: 'meter',
        role: 'progressbar',
        'aria-valuemin': 0,
        'aria-valuemax': 100,
        'aria-valuenow': r.total ? Math.round((100 * there) / r.total) : 100,
        'aria-label': 'Memory that is there',
      },
      h('i', { class: 'few', style: { width: `${r.total ? (100 * there) / r.total : 100}%` } }),
    ),
    h(
      'dl',
      { class: 'quick' },
      [
        ['Memory there', `${size(there)} of ${size(r.total)}`],
        ['Bandwidth', r.over ? `${size(average)}/s on average` : `${size(speed)}/s`],
        ['Faults', number(r.faults)],
        [r.over ? 'Took' : 'So far', span(took)],
        !r.over && r.missing > 0 && speed > 0 && ['Left at this speed', span((r.missing * 1000) / speed)],
      ]
        .filter(Boolean)
        .map(([k, v]) => h('div', {}, h('dt', {}, k), h('dd', {}, v))),
    ),
    course(r, now, width),
    h(
      'ul',
      { class: 'key' },
      got.map(([n, c, short, long]) => h('li', { title: long }, h('i', { class: c }), short, h('b', {}, size(n)))),
      h(
        'li',
        { title: 'of all of them; stored nowhere' },
        h('i', { class: 'zero' }),
        'zero pages',
        h('b', {}, size(r.bytes.zero)),
      ),
    ),
  );
}

export function restoresView(app) {
  const live = h('div'),
    over = h('div');
  for (const d of [live, over]) d.style.display = 'contents';
  const nodes = [h('h1', {}, 'Restores'), live, over];
  const newOver = changed();
  function update(force) {
    const a = app.restores;
    if (!a) return;
    const now = Date.parse(a.now),
      width = nodes[0].clientWidth - (innerWidth < 820 ? 30 : 42),
      store = app.overview?.store || 'STORE';
    const on = a.restores.filter((r) => !r.over),
      off = a.restores.filter((r) => r.over);
    live.replaceChildren(
      ...(on.length
        ? on.map((r) => card(r, now, width, store))
        : [
            h(
              'section',
              { class: 'card empty' },
              'Nothing is being restored. ',
              h('code', {}, `gpucr-fs restore ${quoted(store)} NAME`),
              ' shows up here as soon as it begins.',
            ),
          ]),
    );
    if (newOver([off.map((r) => r.id), width]) || force === true) {
      over.replaceChildren(...(off.length ? [h('h2', {}, 'Over'), ...off.map((r) => card(r, now, width, store))] : []));
    }
  }
  const resize = () => update(true);
  addEventListener('resize', resize);
  return { nodes, update, leave: () => removeEventListener('resize', resize) };
}
