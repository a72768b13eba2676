'use strict';

// What is shown, and elements of the page. Data become text, never markup.

const page = {
  data: null,
  model: null, // of `loadModel`, null if the page has none
  stored: 0, // number of the example that was shown last
  example: null, // labels, maps, movement and translations
  kind: '', // of attention
  layer: 0, // place among the layers that have this kind
  head: 0, // or "mean" or "max"
  showsSpecial: true,
  pinned: new Set(), // queries that stay selected
  pointed: null, // {side: 'query' or 'key', place}
  panel: '',
};

const byId = (id) => document.getElementById(id);

/** Make an element; of the attributes, functions are listeners. */
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(key, value);
    else if (value === true) node.setAttribute(key, '');
    else if (value !== false && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** Return a token as text of its own direction. */
const tokenText = (label) => element('bdi', {}, visibleText(label));

/** Set a number that the style sheet reads, such as the weight of a cell. */
function setNumber(node, name, value) {
  const text = value.toFixed(4);
  if (node.style.getPropertyValue(`--${name}`) !== text) node.style.setProperty(`--${name}`, text);
  return node;
}

const currentMap = () => page.example.maps[page.kind];
const rowOf = (query) => rowOfMap(currentMap(), page.layer, page.head, query);
const shownPlaces = (labels) => placesOf(labels, page.data.special, page.showsSpecial);

/** Return the stack whose places are those of the queries. */
const queryStack = () => (page.kind === 'encoder' ? 'encoder' : 'decoder');

/** Return the queries that are pointed at or selected, all if there are none. */
function activeQueries() {
  const shown = shownPlaces(currentMap().queries);
  if (page.pointed?.side === 'query') return [page.pointed.place];
  const pinned = shown.filter((place) => page.pinned.has(place));
  return pinned.length ? pinned : shown;
}

/** Move the focus between the buttons of a container with the arrow keys; Tab reaches one. */
function moveByArrows(container) {
  container.addEventListener('focusin', (event) => reach(container, event.target));
  container.addEventListener('keydown', (event) => {
    const all = [...container.querySelectorAll('button')];
    const at = all.indexOf(event.target);
    const to = {
      ArrowDown: at + 1,
      ArrowRight: at + 1,
      ArrowUp: at - 1,
      ArrowLeft: at - 1,
      Home: 0,
      End: -1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    all.at(to % all.length).focus();
  });
}

/** Replace the content of a container of buttons, of which Tab reaches one. */
function fillButtons(container, children, reached = 0) {
  container.replaceChildren(...children);
  reach(container, container.querySelectorAll('button')[reached]);
}

/** Make a button the one that Tab reaches in its container. */
function reach(container, chosen) {
  container.querySelectorAll('button').forEach((each) => (each.tabIndex = each === chosen ? 0 : -1));
}
