// One checkpoint: what it takes, its processes, GPUs, and its hot set over their address spaces.
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
  command,
  quoted,
  reference,
  removal,
} from './dom.js';

const section = (title, note, ...content) =>
  h('section', { class: 'card' }, h('header', {}, h('h2', {}, title), note && h('p', {}, note)), content);
const num = (...c) => h('td', { class: 'num' }, ...c);
const table = (heads, rows) =>
  h(
    'div',
    { class: 'scroll', tabindex: 0 },
    h(
      'table',
      {},
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          heads.map((t) => h('th', { scope: 'col', class: t.startsWith('#') ? 'num' : '' }, t.replace('#', ''))),
        ),
      ),
      h('tbody', {}, rows),
    ),
  );
const more = (shown, all, what) =>
  all > shown ? h('p', { class: 'note' }, `The ${number(shown)} largest of ${many(all, what[0], what[1])}.`) : null;
const hex = (n) => n.toString(16);

export function detailView(app, id) {
  const head = h('div', { class: 'title' }, h('h1', {}, 'Checkpoint'), h('span', { class: 'soft' }, 'reading …'));
  const nodes = [h('div', {}, h('a', { href: '#/checkpoints' }, '← All checkpoints')), head];
  const rest = h('div');
  rest.style.display = 'contents';
  nodes.push(rest);
  let left = false;

  function drawHead(d) {
    const c = d.checkpoint;
    document.title = `${c.name} · gpucr-fs`;
    head.replaceChildren(
      ...[
        h('h1', {}, c.name),
        ...(c.tags || []).map((t) => h('span', { class: 'tag' }, t)),
        c.state !== 'sealed' && h('span', { class: 'tag warn' }, c.state),
        c.damage && h('span', { class: 'tag bad' }, 'damaged'),
      ].filter(Boolean),
    );
    const kept = (c.children || []).length;
    const store = app.overview?.store || 'STORE';
    return [
      c.damage && h('p', { class: 'notice bad' }, c.damage),
      h(
        'dl',
        { class: 'figures' },
        figure('Logical', size(c.logical), `${size(c.zero)} of it zero`),
        figure('Unique', size(c.unique), 'no other checkpoint has it'),
        figure('Shared', size(c.shared), 'others have it, too'),
        figure('Stored', size(c.stored), 'in packs, shared or not'),
        figure(
          'Free without it',
          size(d.frees),
          kept ? `but ${many(kept, 'checkpoint')} ${kept === 1 ? 'needs' : 'need'} it` : 'after rm and gc',
        ),
      ),
      h(
        'div',
        { class: 'row' },
        section(
          'What it is',
          null,
          facts(
            ['Taken', when(c.created)],
            ['Sealed', when(c.sealed_at)],
            ['ID', h('code', {}, c.id)],
            ['Files', number(c.files)],
            ['Parent', c.parent || ''],
            ['Needed by', (c.children || []).slice(0, 20).join(', ')],
            ...Object.entries(c.labels || {})
              .sort()
              .map(([k, v]) => [k[0].toUpperCase() + k.slice(1), h('span', { class: 'mono' }, v)]),
          ),
        ),
        section(
          'What to do with it',
          'Commands for a shell on this machine.',
          h(
            'div',
            { class: 'commands' },
            [
              ['Restore', `gpucr-fs restore ${quoted(store)} ${reference(c)}`],
              ['Will it restore?', `gpucr-fs check ${quoted(store)} ${reference(c)}`],
              ['Verify', `gpucr-fs verify ${quoted(store)} ${reference(c)}`],
              ['Remove', removal(store, [c.name])],
            ].map(([k, v]) => h('div', {}, h('span', { class: 'soft' }, k), command(v))),
          ),
        ),
      ),
    ];
  }

  function processes(d) {
    if (d.problem)
      return section('Processes', null, h('p', { class: 'notice bad' }, `The images cannot be read: ${d.problem}`));
    if (!d.images)
      return section('Processes', null, h('p', { class: 'soft' }, 'This checkpoint has no images of CRIU.'));
    const largest = Math.max(1, ...d.tasks.map((t) => t.memory?.present || 0));
    const dump = d.images.dump;
    return section(
      'Processes',
      `${many(d.tasks_all, 'process', 'processes')}, ${size(d.images.total.present)} of memory stored` +
        (dump ? `; they stood still for ${span(dump.frozen_ns / 1e6)} in the dump` : ''),
      table(
        ['Process', '#PID', '#Threads', 'State', '#Mapped', '#Stored', 'On demand, read at once', '#Zero', 'Program'],
        d.tasks.map((t) =>
          h(
            'tr',
            {},
            h('td', {}, h('span', { style: { paddingLeft: `${Math.min(t.depth, 12) * 16}px` } }, t.comm || '–')),
            num(t.pid),
            num(number(t.threads)),
            h('td', {}, (t.state || '').toLowerCase()),
            num(t.memory ? size(t.memory.mapped) : ''),
            num(t.memory ? size(t.memory.present) : ''),
            h(
              'td',
              { style: { minWidth: '120px', verticalAlign: 'middle' } },
              t.memory &&
                split(
                  [
                    ['few', t.memory.lazy],
                    ['many', t.memory.present - t.memory.lazy],
                  ],
                  largest,
                  `${size(t.memory.lazy)} on demand, ${size(t.memory.present - t.memory.lazy)} read at once`,
                ),
            ),
            num(t.memory ? size(t.memory.zero) : ''),
            h('td', { class: 'cut mono', title: t.exe }, t.exe || ''),
          ),
        ),
      ),
      more(d.tasks.length, d.tasks_all, ['process', 'processes']),
    );
  }

  function gpus(d) {
    if (d.gpu_problem)
      return section('GPUs', null, h('p', { class: 'notice bad' }, `The GPU images cannot be read: ${d.gpu_problem}`));
    if (!d.gpu) return null;
    const g = d.gpu,
      bos = g.buffer_objects || [];
    const list = g.processes.flatMap((p) =>
      (p.gpus || []).map((x) => ({
        pid: p.pid,
        queues: (p.queues || []).filter((q) => q.gpu_id === x.gpu_id).length,
        ...x,
      })),
    );
    return section(
      'GPUs',
      `${size(g.vram_bytes)} of VRAM, ${size(g.gtt_bytes)} of GTT`,
      list.length > 0 &&
        table(
          ['#Process', 'GPU', '#Its VRAM', '#Buffer objects', '#Their bytes', '#Queues'],
          list.map((x) =>
            h(
              'tr',
              {},
              num(x.pid),
              h(
                'td',
                {},
                h('span', { class: 'mono' }, x.gpu_id),
                h('span', { class: 'soft' }, ` device 0x${hex(x.device_id)}, render node ${x.render_minor}`),
              ),
              num(size(x.vram_size)),
              num(number((x.bos || []).reduce((n, k) => n + k.count, 0))),
              num(size((x.bos || []).reduce((n, k) => n + k.bytes, 0))),
              num(x.queues),
            ),
          ),
        ),
      h('h3', { style: { margin: '16px 0 6px' } }, 'Buffer objects'),
      table(
        ['Object', 'Kind', 'GPU', '#Address', '#Size', 'Zero, unique, shared', 'Same contents in'],
        bos.map((b) =>
          h(
            'tr',
            {},
            h('td', { class: 'cut mono', title: b.name }, b.name),
            h('td', {}, b.kind),
            h('td', { class: 'mono' }, b.gpu_id),
            num(h('span', { class: 'mono' }, `0x${hex(b.addr)}`)),
            num(size(b.size)),
            h(
              'td',
              { style: { minWidth: '120px', verticalAlign: 'middle' } },
              split(
                [
                  ['zero', b.zero],
                  ['only', b.unique],
                  ['few', b.shared],
                ],
                b.size,
                `${size(b.zero)} zero, ${size(b.unique)} unique, ${size(b.shared)} shared`,
              ),
            ),
            h('td', { class: 'cut soft', title: (b.same_as || []).join(', ') }, (b.same_as || []).join(', ')),
          ),
        ),
      ),
      more(bos.length, d.bos_all, ['buffer object']),
    );
  }

  const files = (d) =>
    section(
      'Files',
      null,
      table(
        ['File', '#Size', 'Zero, unique, shared', '#Unique', '#Shared'],
        d.files.map((f) =>
          h(
            'tr',
            {},
            h('td', { class: 'cut mono', title: f.path }, f.path),
            num(size(f.size)),
            h(
              'td',
              { style: { minWidth: '120px', verticalAlign: 'middle' } },
              split(
                [
                  ['zero', f.zero],
                  ['only', f.unique],
                  ['few', f.shared],
                ],
                f.size || 1,
                `${size(f.zero)} zero, ${size(f.unique)} unique, ${size(f.shared)} shared`,
              ),
            ),
            num(size(f.unique)),
            num(size(f.shared)),
          ),
        ),
      ),
      more(d.files.length, d.files_all, ['file']),
    );

  const strips = [];
  function paint({ canvas, p }) {
    const ratio = Math.min(devicePixelRatio || 1, 3),
      w = canvas.clientWidth * ratio,
      v = canvas.clientHeight * ratio;
    if (!w) return;
    canvas.width = w;
    canvas.height = v;
    const css = getComputedStyle(document.documentElement),
      colour = (n) => css.getPropertyValue(`--${n}`).trim();
    const g = canvas.getContext('2d'),
      n = p.stored_in.length;
    for (let i = 0; i < n; i++) {
      const x = Math.floor((i * w) / n),
        to = Math.max(Math.floor(((i + 1) * w) / n), x + 1);
      const all = Math.min(p.cell, p.mapped - i * p.cell) || 1;
      const bar = (bytes, name) => {
        if (!bytes) return;
        const t = Math.max(v * Math.min(bytes / all, 1), 3 * ratio);
        g.fillStyle = colour(name);
        g.fillRect(x, v - t, to - x, t);
      };
      bar(p.stored_in[i], 'two');
      bar(p.hot_in[i], 'only');
    }
  }

  function memory(m, d) {
    const name = new Map(d.tasks.map((t) => [t.pid, t.comm]));
    const note = m.profile
      ? `The hot set, ${size(m.bytes)} in ${many(m.touches, 'run')}, ` +
        'is what the last recorded restore touched first. ' +
        (m.anew ? 'The next restore records another.' : 'Restores bring it first.')
      : 'No profile yet: the first restore records what the processes touch first.';
    return section(
      'Hot set over the address space',
      note,
      m.problem && h('p', { class: 'notice' }, m.problem),
      m.processes.length > 0 &&
        h(
          'ul',
          { class: 'key' },
          [
            ['only', 'touched first'],
            ['two', 'stored, brought on demand'],
            ['zero', 'mapped, nothing stored'],
          ].map(([c, t]) =>
            h(
              'li',
              {},
              h('i', {
                class: c,
                style: c === 'zero' ? { background: 'var(--sunk)', border: '1px solid var(--line)' } : {},
              }),
              t,
            ),
          ),
        ),
      m.processes.map((p) => {
        const hot = `${size(p.hot)} hot (${percent(p.hot, p.stored)})`;
        const words = `${size(p.mapped)} mapped, ${size(p.stored)} stored, ${hot}`;
        const canvas = h('canvas', { role: 'img', 'aria-label': `Address space of process ${p.pid}: ${words}` });
        strips.push({ canvas, p });
        // The largest areas get their address, as far as there is room.
        const ends = p.areas
          .map((a, i) => [a, (p.areas[i + 1]?.begin ?? p.mapped) - a.begin])
          .sort((a, b) => b[1] - a[1]);
        const taken = [];
        for (const [a] of ends) {
          const from = (100 * a.begin) / p.mapped;
          if (from < 84 && taken.every((t) => Math.abs(t.from - from) > 16)) taken.push({ a, from });
        }
        return h(
          'div',
          { class: 'strip' },
          h('header', {}, h('h3', {}, `${name.get(p.pid) || 'process'} ${p.pid}`), h('span', { class: 'soft' }, words)),
          canvas,
          h(
            'div',
            { class: 'ticks', 'aria-hidden': 'true' },
            taken.map(({ a, from }) =>
              h(
                'span',
                { style: { left: `${from}%` } },
                `0x${hex(a.start)}${a.heap ? ' heap' : ''}${a.stack ? ' stack' : ''}`,
              ),
            ),
          ),
        );
      }),
      more(m.processes.length, m.all, ['process', 'processes']),
    );
  }

  const resize = new ResizeObserver(() => strips.forEach(paint));
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const repaint = () => strips.forEach(paint);
  dark.addEventListener('change', repaint);

  async function load() {
    try {
      const d = await app.ask(`checkpoint/${encodeURIComponent(id)}`);
      if (left) return;
      const hot = h('div');
      hot.style.display = 'contents';
      rest.replaceChildren(...[...drawHead(d), processes(d), hot, gpus(d), files(d)].filter(Boolean));
      const m = await app.ask(`memory/${encodeURIComponent(d.checkpoint.id)}`);
      if (left) return;
      if (m.processes.length || m.profile || m.problem) hot.replaceChildren(memory(m, d));
      strips.forEach(({ canvas }) => resize.observe(canvas));
    } catch (e) {
      if (left) return;
      head.replaceChildren(h('h1', {}, 'Checkpoint'));
      rest.replaceChildren(h('p', { class: 'notice bad' }, e.message, e.hint ? ` (${e.hint})` : ''));
    }
  }
  load();
  return {
    nodes,
    leave() {
      left = true;
      resize.disconnect();
      dark.removeEventListener('change', repaint);
    },
  };
}
