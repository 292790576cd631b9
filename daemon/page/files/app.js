// The frame of the page: which view is shown, and what is asked of the daemon.
import { number } from './dom.js';
import { storeView } from './store.js';
import { listView } from './list.js';
import { detailView } from './detail.js';
import { restoresView } from './restores.js';
import { messagesView } from './messages.js';

const main = document.getElementById('main');
const lost = document.getElementById('lost');

// ask gets an answer of the daemon; an error says why there is none.
export async function ask(path, options) {
  const r = await fetch(`api/${path}`, options);
  if (r.status === 401) {
    location.reload();
  }
  const body = await r.json();
  if (!r.ok) {
    const e = new Error(body.error);
    e.hint = body.hint;
    throw e;
  }
  return body;
}

const views = {
  store: storeView,
  checkpoints: listView,
  checkpoint: detailView,
  restores: restoresView,
  messages: messagesView,
};
const titles = {
  store: 'Store',
  checkpoints: 'Checkpoints',
  checkpoint: 'Checkpoint',
  restores: 'Restores',
  messages: 'Messages',
};
const app = { ask, overview: null, restores: null };
let shown = null;
let finding = false;

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, '').split('/');
  if (name === 'main') return;
  const key = views[name] ? name : 'store';
  shown?.leave?.();
  main.replaceChildren();
  shown = views[key](app, rest.map(decodeURIComponent).join('/'));
  main.append(...shown.nodes);
  for (const a of document.querySelectorAll('#nav a')) {
    if (a.dataset.view === key || (key === 'checkpoint' && a.dataset.view === 'checkpoints'))
      a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  document.title = `${titles[key]} · gpucr-fs`;
  scrollTo(0, 0);
  shown.update?.();
  document.body.dataset.view = key;
}

const badge = (id, n) => {
  document.getElementById(id).textContent = n ? number(n) : '';
};

let seen = Number(sessionStorage.getItem('seen') || 0); // warnings that somebody has looked at
function frame() {
  const o = app.overview;
  document.getElementById('where').textContent = `\u200e${o.store}`;
  document.getElementById('where').title = o.store;
  badge('n-checkpoints', o.checkpoints);
  badge('n-restores', app.restores.restores.filter((r) => !r.over).length);
  if (document.body.dataset.view === 'messages') sessionStorage.setItem('seen', (seen = o.logged));
  if (seen > o.logged) seen = 0;
  badge('n-messages', o.logged - seen);
}

// poll asks again and again: often while something is restored, not at all while nobody looks.
async function poll() {
  let wait = 2000;
  if (!document.hidden) {
    try {
      const known = app.restores?.ended ?? -1;
      const [overview, restores] = await Promise.all([ask('overview'), ask(`restores?known=${known}`)]);
      if (restores.ended === known) restores.restores.push(...app.restores.restores.filter((r) => r.over));
      Object.assign(app, { overview, restores });
      lost.hidden = true;
      frame();
      shown?.update?.();
      if (app.restores.restores.some((r) => !r.over)) wait = 500;
      else if (app.overview.counting) wait = 300;
    } catch (e) {
      lost.textContent =
        e instanceof TypeError
          ? 'The daemon does not answer. It ends with its last mount; gpucr-fs serve shows the store without one.'
          : e.message;
      lost.hidden = false;
    }
  }
  setTimeout(poll, wait);
}

addEventListener('hashchange', () => {
  route();
  main.focus({ preventScroll: true });
});
document.addEventListener('keydown', (e) => {
  if (e.target.matches('input, textarea') || e.ctrlKey || e.metaKey || e.altKey) return;
  const to = { 1: 'store', 2: 'checkpoints', 3: 'restores', 4: 'messages' }[e.key];
  if (to) location.hash = `#/${to}`;
  if (e.key === '/') {
    e.preventDefault();
    if (document.body.dataset.view !== 'checkpoints') location.hash = '#/checkpoints';
    finding = true;
  }
});
// The field gets the focus when the key is up: it is not to get the key.
document.addEventListener('keyup', () => {
  if (finding) document.querySelector('input[type=search]')?.focus();
  finding = false;
});
route();
poll();
