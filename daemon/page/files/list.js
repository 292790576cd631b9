// All checkpoints: found, sorted, and picked to see what their removal would free.
import { h, size, number, many, when, split, command, quoted, changed, removal } from './dom.js';

const rowHeight = 38,
  page = 200;
const columns = [
  ['', '', '', 'Picked'],
  ['name', 'Name', ''],
  ['created', 'Taken', 'wide'],
  ['logical', 'Logical', 'num wide', 'Bytes of its files'],
  ['unique', 'Unique', 'num wide', 'Bytes that no other checkpoint has, before compression'],
  ['shared', 'Shared', 'num wide', 'Bytes that others have, too'],
  ['stored', 'Stored', 'num', 'What its bytes occupy in packs, shared or not'],
  ['frees', 'Frees', 'num', 'What would be free without it'],
  ['', 'Zero, unique, shared', 'wide'],
];
const state = { sort: 'created', desc: true, q: '', top: 0, picked: new Map() };

export function listView(app) {
  let pages = new Map(),
    matched = 0,
    all = 0,
    active = 0,
    turn = 0;
  const search = h('input', {
    type: 'search',
    placeholder: 'Find by name, tag, command, host',
    'aria-label': 'Find checkpoints',
    value: state.q,
    autocomplete: 'off',
    spellcheck: 'false',
  });
  const found = h('span', { class: 'soft', role: 'status' });
  const head = h('div', { role: 'row', class: 'head', 'aria-rowindex': 1 });
  const body = h('div', {
    class: 'body',
    role: 'rowgroup',
    tabindex: 0,
    'aria-label': 'Checkpoints. Arrow keys move, Enter opens, Space picks.',
  });
  const spacer = h('div');
  body.append(spacer);
  const grid = h(
    'div',
    { class: 'list', role: 'grid', 'aria-label': 'Checkpoints', 'aria-multiselectable': 'true' },
    head,
    body,
  );
  const picked = h('section', { class: 'picked', 'aria-live': 'polite', hidden: true });
  const card = h(
    'section',
    { class: 'card' },
    h('div', { class: 'tools' }, h('h1', {}, 'Checkpoints'), search, found),
    grid,
    picked,
  );

  function drawHead() {
    head.replaceChildren(
      ...columns.map(([key, name, kind, help]) =>
        h(
          'div',
          {
            role: 'columnheader',
            class: kind,
            'aria-label': name ? null : help,
            'aria-sort': key && key === state.sort ? (state.desc ? 'descending' : 'ascending') : null,
          },
          key
            ? h(
                'button',
                {
                  type: 'button',
                  title: help,
                  on: {
                    click: () => {
                      state.desc = state.sort === key ? !state.desc : key !== 'name';
                      state.sort = key;
                      state.top = active = 0;
                      body.scrollTop = 0;
                      drawHead();
                      head.querySelector('[aria-sort] button').focus();
                      reset();
                    },
                  },
                },
                name,
              )
            : name,
        ),
      ),
    );
  }

  const query = (n) =>
    `checkpoints?sort=${state.sort}${state.desc ? '&desc=1' : ''}&q=${encodeURIComponent(state.q)}&from=${n * page}`;

  async function load(n) {
    if (pages.has(n)) return;
    const mine = turn,
      into = pages;
    into.set(n, null);
    try {
      const l = await app.ask(query(n));
      if (mine !== turn) return;
      into.set(n, l.rows);
      matched = l.matched;
      all = l.all;
      draw();
    } catch (e) {
      into.delete(n);
      if (mine === turn) found.textContent = e.message;
    }
  }

  // reset asks anew; what is shown stays until the answer has come.
  function reset() {
    turn++;
    const old = pages;
    pages = new Map();
    const first = Math.floor(body.scrollTop / rowHeight / page);
    const mine = turn;
    app
      .ask(query(first))
      .then((l) => {
        if (mine !== turn) return;
        pages.set(first, l.rows);
        matched = l.matched;
        all = l.all;
        active = Math.min(active, Math.max(matched - 1, 0));
        draw();
      })
      .catch((e) => {
        pages = old;
        found.textContent = e.message;
      });
  }

  const row = (i) => pages.get(Math.floor(i / page))?.[i % page];

  function pick(r) {
    if (state.picked.has(r.id)) state.picked.delete(r.id);
    else state.picked.set(r.id, r.name);
    draw();
    drawPicked();
  }

  const cell = (kind, ...content) => h('div', { role: 'gridcell', class: kind }, ...content);

  function line(i) {
    const r = row(i);
    const place = { top: `${i * rowHeight}px` };
    if (!r) return h('div', { role: 'row', 'aria-rowindex': i + 2, style: place }, cell(''), cell('soft', '…'));
    const known = (n) => (r.counted ? size(n) : '–');
    const tags = [
      ...(r.tags || []).map((t) => h('span', { class: 'tag' }, t)),
      r.state !== 'sealed' && h('span', { class: `tag ${r.state === 'incomplete' ? 'warn' : ''}` }, r.state),
      r.damage && h('span', { class: 'tag bad' }, 'damaged'),
    ];
    const on = state.picked.has(r.id);
    return h(
      'div',
      {
        role: 'row',
        id: `row-${i}`,
        'aria-rowindex': i + 2,
        'aria-selected': on ? 'true' : 'false',
        class: i === active ? 'at' : '',
        style: place,
        on: {
          click: (e) => {
            if (!e.target.closest('a, input')) {
              active = i;
              draw();
            }
          },
          dblclick: () => {
            location.hash = `#/checkpoint/${r.id}`;
          },
        },
      },
      cell(
        '',
        h('input', {
          type: 'checkbox',
          tabindex: -1,
          checked: on,
          'aria-label': `Pick ${r.name}`,
          on: {
            change: () => {
              active = i;
              pick(r);
            },
          },
        }),
      ),
      cell(
        '',
        h('a', { href: `#/checkpoint/${r.id}`, tabindex: -1, title: r.labels?.command || r.name }, r.name),
        tags,
      ),
      cell('wide soft', when(r.created)),
      cell('num wide', size(r.logical)),
      cell('num wide', known(r.unique)),
      cell('num wide', known(r.shared)),
      cell('num', known(r.stored)),
      cell('num', known(r.held.only)),
      cell(
        'wide',
        r.counted && r.logical > 0
          ? split(
              [
                ['zero', r.zero],
                ['only', r.unique],
                ['few', r.shared],
              ],
              r.logical,
              `${size(r.zero)} zero, ${size(r.unique)} unique, ${size(r.shared)} shared`,
            )
          : '',
      ),
    );
  }

  function draw() {
    spacer.style.height = `${matched * rowHeight}px`;
    grid.setAttribute('aria-rowcount', matched + 1);
    found.textContent = matched === all ? many(all, 'checkpoint') : `${number(matched)} of ${many(all, 'checkpoint')}`;
    const first = Math.max(Math.floor(body.scrollTop / rowHeight) - 6, 0);
    const last = Math.min(Math.ceil((body.scrollTop + body.clientHeight) / rowHeight) + 6, matched);
    for (let n = Math.floor(first / page); n * page < last; n++) load(n);
    const lines = [];
    for (let i = first; i < last; i++) lines.push(line(i));
    body.replaceChildren(
      spacer,
      ...lines,
      ...(matched
        ? []
        : [h('p', { class: 'empty' }, all ? 'Nothing is called that.' : 'The store has no checkpoints yet.')]),
    );
    if (row(active)) body.setAttribute('aria-activedescendant', `row-${active}`);
    state.top = body.scrollTop;
  }

  function move(to) {
    active = Math.max(0, Math.min(to, matched - 1));
    const top = active * rowHeight;
    if (top < body.scrollTop) body.scrollTop = top;
    else if (top + rowHeight > body.scrollTop + body.clientHeight) body.scrollTop = top + rowHeight - body.clientHeight;
    draw();
  }

  body.addEventListener('keydown', (e) => {
    const screen = Math.max(Math.floor(body.clientHeight / rowHeight) - 1, 1);
    const by = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: screen,
      PageUp: -screen,
      Home: -matched,
      End: matched,
    }[e.key];
    const r = row(active);
    if (by !== undefined) move(active + by);
    else if (e.key === 'Enter' && r) location.hash = `#/checkpoint/${r.id}`;
    else if (e.key === ' ' && r) pick(r);
    else return;
    e.preventDefault();
  });
  let frame = 0;
  body.addEventListener('scroll', () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  });
  let typing;
  search.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      state.q = search.value;
      active = 0;
      body.scrollTop = 0;
      reset();
    }, 120);
  });
  search.addEventListener('keydown', (e) => {
    if (e.key === 'ArrowDown' || e.key === 'Enter') {
      e.preventDefault();
      body.focus();
    }
  });

  let asking = 0;
  function drawPicked() {
    const n = state.picked.size,
      names = [...state.picked.values()],
      mine = ++asking;
    picked.hidden = n === 0;
    if (!n) return;
    const answer = h('p', {}, 'Counting what would be free …');
    picked.replaceChildren(
      h(
        'header',
        {},
        h('h2', {}, `${many(n, 'checkpoint')} picked`),
        h(
          'button',
          {
            class: 'button',
            type: 'button',
            on: {
              click: () => {
                state.picked.clear();
                draw();
                drawPicked();
                body.focus();
              },
            },
          },
          'Pick none',
        ),
      ),
      answer,
    );
    setTimeout(async () => {
      if (mine !== asking) return;
      try {
        const f = await app.ask('frees', {
          method: 'POST',
          headers: { 'Content-Type': 'application/json' },
          body: JSON.stringify({ ids: [...state.picked.keys()] }),
        });
        if (mine !== asking) return;
        answer.replaceChildren(
          'Without ',
          n === 1 ? 'it ' : 'them ',
          h('b', {}, size(f.bytes)),
          ' would be free.',
          f.refused ? ` But: ${f.refused}${f.hint ? ` (${f.hint})` : ''}.` : '',
        );
        if (f.refused) return;
        const store = app.overview?.store || 'STORE';
        picked.append(command(`${removal(store, names)} && gpucr-fs gc ${quoted(store)}`));
      } catch (e) {
        if (mine === asking) answer.textContent = e.message;
      }
    }, 250);
  }

  const resize = new ResizeObserver(() => draw());
  const news = changed();
  return {
    nodes: [card],
    update() {
      const o = app.overview;
      if (o && news([o.checkpoints, o.counted_at, o.writing])) reset();
      if (!head.firstChild) {
        drawHead();
        resize.observe(body);
        draw();
        body.scrollTop = state.top;
        drawPicked();
        if (!o) reset();
      }
    },
    leave: () => {
      turn++;
      asking++;
      resize.disconnect();
    },
  };
}
