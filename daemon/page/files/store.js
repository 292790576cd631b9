// The store: what it takes, a map of its bytes, and what could go.
import {
  h,
  size,
  number,
  many,
  percent,
  when,
  span,
  facts,
  figure,
  split,
  sum,
  classes,
  changed,
  quoted,
} from './dom.js';
import { treemap } from './treemap.js';

export function storeView(app) {
  const figures = h('dl', { class: 'figures' });
  const notices = h('ul', { class: 'notices', 'aria-label': 'What needs attention' });
  const key = h('ul', { class: 'key', 'aria-label': 'Colours of the map' });
  const map = h('div', {
    class: 'map',
    role: 'group',
    'aria-label': 'Map of the store: one tile for each checkpoint. Arrow keys move, Enter opens.',
  });
  const told = h('div', { class: 'told', 'aria-live': 'polite' });
  const could = h('ul', { class: 'could' });
  const counters = h('div');
  const mapCard = h(
    'section',
    { class: 'card' },
    h(
      'header',
      {},
      h('h2', {}, 'What uses the bytes of the store'),
      h('p', {}, 'Area is bytes in packs. Colour is how many checkpoints use them.'),
    ),
    key,
    map,
    told,
  );
  const nodes = [
    figures,
    notices,
    mapCard,
    h(
      'div',
      { class: 'row' },
      h(
        'section',
        { class: 'card' },
        h(
          'header',
          {},
          h('h2', {}, 'What could go'),
          h('p', {}, 'Bytes that only this checkpoint uses: they are free after rm and gc.'),
        ),
        could,
      ),
      h('section', { class: 'card' }, h('header', {}, h('h2', {}, 'Since the daemon started')), counters),
    ),
  ];

  let tiles = null;
  let countedAt;
  const newMap = changed();

  function tell(t) {
    if (!t) {
      told.replaceChildren(
        h('p', { class: 'soft' }, 'Point at a tile, or move there with the arrow keys. Enter opens the checkpoint.'),
      );
      return;
    }
    const rest = sum(t) - t.only;
    told.replaceChildren(
      h(
        'p',
        {},
        h('b', {}, t.name || many(t.count, 'smaller checkpoint')),
        ` stands for ${size(sum(t))}, ${percent(sum(t), sum(tiles.all))} of the store.`,
      ),
      h(
        'p',
        {},
        t.count > 1
          ? `${size(t.only)} are used by one of them alone.`
          : t.only > 0
            ? `Without it ${size(t.only)} would be free.`
            : 'Without it nothing would be free.',
        rest > 0 ? ` ${size(rest)} are used by other checkpoints, too, and would stay.` : '',
      ),
      h(
        'p',
        { class: 'soft' },
        classes
          .filter(([c]) => t[c] > 0)
          .map(([c, words]) => `${words}: ${size(t[c])}`)
          .join(' · '),
      ),
    );
  }

  function draw() {
    if (!tiles) return;
    const list = tiles.rest.count ? [...tiles.tiles, tiles.rest] : tiles.tiles;
    const order = list.slice().sort((a, b) => sum(b) - sum(a));
    const held = document.activeElement?.dataset?.id;
    map.hidden = !order.length;
    const { clientWidth: w, clientHeight: v } = map;
    const places = treemap(order.map(sum), w, v);
    if (!places.length) {
      map.replaceChildren();
      return;
    }
    map.replaceChildren(
      ...order.map((t, i) => {
        const p = places[i],
          gap = p.w > 6 && p.h > 6 ? 2 : 1;
        const box = {
          left: `${p.x}px`,
          top: `${p.y}px`,
          width: `${Math.max(p.w - gap, 1)}px`,
          height: `${Math.max(p.h - gap, 1)}px`,
          flexDirection: p.w > p.h ? 'row' : 'column',
        };
        const label = t.name || many(t.count, 'smaller checkpoint');
        return h(
          'a',
          {
            class: 'tile',
            style: box,
            'data-id': t.id || 'rest',
            href: t.id ? `#/checkpoint/${t.id}` : '#/checkpoints',
            tabindex: -1,
            'aria-label': `${label}: ${size(sum(t))}, ${size(t.only)} free without it`,
            on: { pointerenter: () => tell(t), focus: () => tell(t) },
          },
          classes.map(([c]) => t[c] > 0 && h('i', { class: c, style: { flexGrow: t[c], flexBasis: 0 } })),
          p.w > 62 && p.h > 24 && h('span', {}, label),
        );
      }),
    );
    const first = map.querySelector(`[data-id="${CSS.escape(held || '')}"]`) || map.firstElementChild;
    if (first) first.tabIndex = 0;
    if (held && first) first.focus({ preventScroll: true });
  }

  // Arrow keys go to the nearest tile in their direction.
  map.addEventListener('keydown', (e) => {
    const d = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    const from = document.activeElement;
    if (!d || from.parentElement !== map) return;
    e.preventDefault();
    const mid = (n) => [n.offsetLeft + n.offsetWidth / 2, n.offsetTop + n.offsetHeight / 2];
    const [x, y] = mid(from);
    let best = null,
      least = Infinity;
    for (const n of map.children) {
      const [a, b] = mid(n);
      const ahead = (a - x) * d[0] + (b - y) * d[1],
        aside = Math.abs((a - x) * d[1]) + Math.abs((b - y) * d[0]);
      if (n !== from && ahead > 1 && ahead + 2 * aside < least) {
        least = ahead + 2 * aside;
        best = n;
      }
    }
    if (best) {
      from.tabIndex = -1;
      best.tabIndex = 0;
      best.focus({ preventScroll: true });
    }
  });
  map.addEventListener('pointerleave', () => tell(null));

  async function fetchMap() {
    const [m, top] = await Promise.all([app.ask('map'), app.ask('checkpoints?sort=frees&desc=1')]);
    if (newMap(m)) {
      tiles = m;
      key.replaceChildren(
        ...classes.map(([c, words]) =>
          h('li', {}, h('i', { class: c }), words, h('b', {}, size(m.counted ? m.all[c] : -1))),
        ),
      );
      draw();
      tell(null);
    }
    const rows = top.rows.filter((r) => r.counted && r.held.only > 0).slice(0, 8);
    const largest = rows[0]?.held.only;
    could.replaceChildren(
      ...rows.map((r) =>
        h(
          'li',
          {},
          h('a', { href: `#/checkpoint/${r.id}` }, r.name),
          h('b', {}, size(r.held.only)),
          split([['only', r.held.only]], largest, `${size(r.held.only)} of ${size(r.stored)} that it uses`),
        ),
      ),
    );
    if (!rows.length)
      could.append(h('li', { class: 'empty' }, top.counted ? 'No checkpoint has bytes to itself.' : 'Counting …'));
  }

  function drawCounters(o) {
    const s = o.stats.store,
      chunks = s.hits + s.misses;
    counters.replaceChildren(
      facts(
        [
          'Daemon',
          `process ${o.pid}, version ${o.version}, for ${span(Date.parse(o.now) - Date.parse(o.stats.since))}`,
        ],
        ['Read', `${size(s.bytes_read)} delivered, ${size(s.bytes_fetched)} of it from packs`],
        [
          'Chunks in memory',
          chunks
            ? `${percent(s.hits, chunks)} of ${number(chunks)} reads; ${size(s.cache_bytes)} held`
            : `no reads; ${size(s.cache_bytes)} held`,
        ],
        ['Written', `${size(s.bytes_written)} taken, ${size(s.bytes_stored)} stored, ${size(s.zero_bytes)} zero`],
        ['Read errors', number(s.errors)],
        ...o.stats.mounts.map((m) => [
          'Mount',
          [
            m.dir,
            h(
              'span',
              { class: 'soft' },
              ` ${m.new ? `new checkpoint ${m.new}` : m.checkpoint || 'the one sealed last'}; ${number(m.reads)} reads`,
            ),
          ],
        ]),
        o.stats.uploads && [
          'Uploads',
          o.stats.uploads.name
            ? `${o.stats.uploads.name}: ${size(o.stats.uploads.done)} of ${size(o.stats.uploads.total)}`
            : `${o.stats.uploads.waiting || 0} wait`,
        ],
      ),
    );
  }

  function drawNotices(o) {
    const n = [];
    if (o.damages)
      n.push([
        'bad',
        h('b', {}, `${many(o.damages, 'checkpoint')} damaged: `),
        o.damaged.map((d, i) => [i ? ', ' : '', h('a', { href: `#/checkpoint/${d.id}` }, d.name)]),
        '. ',
        h('code', {}, `gpucr-fs verify ${quoted(o.store)}`),
        ' tells what can be restored.',
      ]);
    if (o.problem) n.push(['bad', h('b', {}, 'The store could not be counted: '), o.problem]);
    if (o.incompletes)
      n.push([
        '',
        h('b', {}, `${many(o.incompletes, 'dump')} did not end well: `),
        o.incomplete.join(', '),
        '. ',
        h('code', {}, `gpucr-fs gc ${quoted(o.store)}`),
        ' clears away what is left.',
      ]);
    if (o.writing) n.push(['plain', h('b', {}, many(o.writing, 'checkpoint')), ' being written.']);
    if (o.read_only) n.push(['plain', 'The store is open for reading only.']);
    notices.replaceChildren(...n.map(([kind, ...text]) => h('li', { class: `notice ${kind}` }, text)));
    notices.hidden = !n.length;
  }
  const newNotices = changed();

  function update() {
    const o = app.overview;
    if (!o) return;
    const u = o.usage,
      state = o.counting ? 'counting …' : o.stale ? 'counted before the last change' : '';
    figures.replaceChildren(
      figure(
        'Checkpoints',
        number(o.checkpoints - o.writing),
        o.writing ? `${number(o.writing)} more being written` : state || `counted ${when(o.counted_at)}`,
      ),
      figure('Logical', size(u?.logical), u ? `${size(u.zero)} of it zero` : state),
      figure('Stored', size(u?.stored), u && u.stored ? `${u.dedupe_ratio.toFixed(1)} times less than logical` : ''),
      figure('On disk', size(u?.disk), u ? `${many(u.packs, 'pack')}, index and journals` : ''),
      figure('gc gives back', size(u?.reclaimable), u?.reclaimable ? 'nothing uses it' : ''),
      figure('Free on the disk', size(o.stats.store.free_bytes), ''),
    );
    drawCounters(o);
    if (newNotices([o.damages, o.problem, o.incompletes, o.incomplete, o.writing, o.read_only])) drawNotices(o);
    if (countedAt !== `${o.counted_at} ${o.counting}`) {
      countedAt = `${o.counted_at} ${o.counting}`;
      fetchMap().catch((e) => {
        countedAt = undefined;
        throw e;
      });
    }
  }

  const resize = new ResizeObserver(() => draw());
  resize.observe(map);
  tell(null);
  notices.hidden = true;
  return { nodes, update, leave: () => resize.disconnect() };
}
