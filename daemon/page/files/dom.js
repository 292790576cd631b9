// Elements, and figures in words.

function build(node, props, children) {
  for (const [k, v] of Object.entries(props || {})) {
    if (v === undefined || v === null || v === false) continue;
    if (k === 'on') for (const [e, f] of Object.entries(v)) node.addEventListener(e, f);
    else if (k === 'style') Object.assign(node.style, v);
    else node.setAttribute(k, v === true ? '' : v);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== false));
  return node;
}

export const h = (tag, props, ...children) => build(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) =>
  build(document.createElementNS('http://www.w3.org/2000/svg', tag), props, children);

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

// size gives bytes as people read them. Less than nothing is not known.
export function size(n) {
  if (n === undefined || n === null || n < 0) return '–';
  let u = 0;
  while (n >= 1023.5 && u < units.length - 1) {
    n /= 1024;
    u++;
  }
  const digits = u === 0 || n >= 99.95 ? 0 : n >= 9.995 ? 1 : 2;
  return `${n.toFixed(digits)}\u00a0${units[u]}`;
}

export const many = (n, one, more) => `${number(n)}\u00a0${n === 1 ? one : more || one + 's'}`;
export const number = (n) => n.toLocaleString('en');
export const percent = (part, of) =>
  of > 0 ? `${((100 * part) / of).toFixed(part / of < 0.0995 && part > 0 ? 1 : 0)}\u00a0%` : '–';

// span gives a length of time in milliseconds.
export function span(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))}\u00a0ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)}\u00a0s`;
  if (s < 3600) return `${Math.floor(s / 60)}\u00a0min ${Math.floor(s % 60)}\u00a0s`;
  if (s < 86400 * 2) return `${Math.floor(s / 3600)}\u00a0h ${Math.floor((s % 3600) / 60)}\u00a0min`;
  return many(Math.floor(s / 86400), 'day');
}

const set = (t) => t && !t.startsWith('0001');
export const at = (t) => (set(t) ? new Date(t) : null);

export function when(t) {
  const d = at(t);
  if (!d) return '–';
  const p = (n) => String(n).padStart(2, '0');
  return `${d.getFullYear()}-${p(d.getMonth() + 1)}-${p(d.getDate())} ${p(d.getHours())}:${p(d.getMinutes())}`;
}

export function clock(t) {
  const d = at(t);
  return d ? d.toTimeString().slice(0, 8) : '–';
}

// The classes of bytes, by how many checkpoints have them.
export const classes = [
  ['only', 'one checkpoint alone'],
  ['two', 'two checkpoints'],
  ['few', '3 to 9'],
  ['many', '10 and more'],
];
export const sum = (t) => t.only + t.two + t.few + t.many;

// split is a bar of parts: [class, bytes].
export function split(parts, all, label) {
  const bar = h('div', { class: 'split', role: 'img', 'aria-label': label, title: label });
  let rest = all;
  for (const [name, n] of parts) {
    if (n > 0) bar.append(h('i', { class: name, style: { flexGrow: n / all } }));
    rest -= n;
  }
  if (rest > 0) bar.append(h('i', { style: { flexGrow: rest / all } }));
  return bar;
}

export function figure(name, value, note) {
  return h('div', {}, h('dt', {}, name), h('dd', {}, value, note && h('small', {}, note)));
}

export const facts = (...pairs) =>
  h(
    'dl',
    { class: 'facts' },
    pairs.filter((p) => p && p[1] !== undefined && p[1] !== '').map(([k, v]) => [h('dt', {}, k), h('dd', {}, v)]),
  );

// command is a line for a shell, with a button that copies it where the browser lets us.
export function command(text) {
  const button =
    navigator.clipboard &&
    h(
      'button',
      {
        class: 'button',
        type: 'button',
        on: {
          click: async () => {
            await navigator.clipboard.writeText(text);
            button.textContent = 'Copied';
            setTimeout(() => {
              button.textContent = 'Copy';
            }, 1500);
          },
        },
      },
      'Copy',
    );
  return h('div', { class: 'command' }, h('code', { tabindex: 0 }, text), button);
}

// quoted is a word that a shell takes as it is.
export const quoted = (s) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(s) ? s : `'${s.replaceAll("'", `'\\''`)}'`);

// reference is a word by which a command finds a checkpoint. A name that begins with a dash, as earlier versions
// allowed, would be an option.
export const reference = (c) => (c.name.startsWith('-') ? c.id : quoted(c.name));

// removal is a command that removes checkpoints by their names.
export const removal = (store, names) =>
  `gpucr-fs rm ${quoted(store)} ${names.some((n) => n.startsWith('-')) ? '-- ' : ''}${names.map(quoted).join(' ')}`;

// changed tells whether what it is given differs from the last time.
export function changed() {
  let last;
  return (v) => {
    const now = JSON.stringify(v);
    const differs = now !== last;
    last = now;
    return differs;
  };
}
