// What the daemon warned of, and what failed, since it was started.
import { h, clock, when, changed } from './dom.js';

// What an error says is part of the sentence.
const said = (m) => (m.attrs || []).filter((a) => a.name === 'error');
const rest = (m) => (m.attrs || []).filter((a) => a.name !== 'error');

export function messagesView(app) {
  const list = h('ul', { class: 'log' });
  const note = h('p');
  const news = changed();
  return {
    nodes: [h('section', { class: 'card' }, h('header', {}, h('h1', {}, 'Messages'), note), list)],
    update() {
      const o = app.overview;
      if (!o || !news(o.messages)) return;
      const left = o.logged > o.messages.length ? `; the last ${o.messages.length} of ${o.logged}` : '';
      note.textContent =
        `Warnings and errors since the daemon started, ${when(o.stats.since)}${left}. ` +
        'All of its log is in its log file.';
      list.replaceChildren(
        ...o.messages.map((m) =>
          h(
            'li',
            {},
            h('time', { datetime: m.at, title: when(m.at) }, clock(m.at)),
            h(
              'p',
              {},
              h(
                'span',
                { class: `tag ${m.level === 'error' ? 'bad' : 'warn'}`, style: { margin: '0 8px 0 0' } },
                m.level === 'error' ? 'error' : 'warning',
              ),
              m.text,
              said(m).map((a) => `: ${a.value}`),
            ),
            rest(m).length > 0 &&
              h(
                'dl',
                {},
                rest(m).map((a) => h('div', {}, h('dt', {}, a.name), h('dd', {}, a.value))),
              ),
          ),
        ),
      );
      if (!o.messages.length)
        list.append(h('li', { class: 'empty', style: { display: 'block' } }, 'Nothing went wrong.'));
    },
  };
}
