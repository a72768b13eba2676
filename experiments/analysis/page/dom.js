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
  inColours: false, // a colour for the lines of each head, in place of their mean
  showsSpecial: true,
  pinned: new Set(), // queries that stay selected
  pointed: null, // {side: 'query' or 'key', place}
  panel: '',
  settings: { temperature: 1, topK: Infinity, topP: 1 }, // of sampling
};

const byId = (id) => document.getElementById(id);

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

/** Replace the content of a container of buttons, of which Tab reaches one. */
function fillButtons(container, children, reached = 0) {
  container.replaceChildren(...children);
  reach(container, container.querySelectorAll('button')[reached]);
}
