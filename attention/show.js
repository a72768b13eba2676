'use strict';

// A grid of attention weights: a small map for each head, and a table of the chosen one. It is what
// `attention.show` puts into a notebook; the page of --mode=explain uses the same functions. A map
// has queries and keys as words, its shape [L, N, T, S], and the weights of L layers and N heads in
// a Float32Array, or a function `compute` of layer, head and query in place of them.

const MOST_PIXELS = 128; // of each side of a small map; of larger maps every n-th row is drawn

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

/** Set a number that the style sheet reads, such as the weight of a cell. */
function setNumber(node, name, value) {
  const text = value.toFixed(4);
  if (node.style.getPropertyValue(`--${name}`) !== text) node.style.setProperty(`--${name}`, text);
  return node;
}

const WHITE_SPACE = { ' ': '␣', '\n': '⏎', '\t': '⇥' };

/** Return a label whose white space at both ends can be seen. */
function visibleText(label) {
  const visible = (spaces) => [...spaces].map((each) => WHITE_SPACE[each] ?? each).join('');
  return label.replace(/^\s+|\s+$/g, visible) || '∅';
}

/** Return a token as text of its own direction. */
const tokenText = (label) => element('bdi', {}, visibleText(label));

const columnHead = (...children) => element('th', { scope: 'col' }, ...children);
const rowHead = (...children) => element('th', { scope: 'row' }, ...children);

/** Move the focus between the buttons of a container with the arrow keys; Tab reaches one. */
function moveByArrows(container, selector = 'button', columns = 1) {
  container.addEventListener('focusin', (event) => reach(container, event.target, selector));
  container.addEventListener('keydown', (event) => {
    const all = [...container.querySelectorAll(selector)];
    const at = all.indexOf(event.target);
    const to = {
      ArrowDown: at + columns,
      ArrowRight: at + 1,
      ArrowUp: at - columns,
      ArrowLeft: at - 1,
      Home: 0,
      End: -1,
    }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    all.at(to % all.length).focus();
  });
}

/** Make an element the one that Tab reaches in its container. */
function reach(container, chosen, selector = 'button') {
  if (!chosen?.matches(selector)) return;
  container.querySelectorAll(selector).forEach((each) => (each.tabIndex = each === chosen ? 0 : -1));
}

/** Return the weights of a query in one head. */
function rowOfHead({ shape: [, heads, queries, keys], weights, compute }, layer, head, query) {
  if (!weights) return compute(layer, head, query);
  const start = ((layer * heads + head) * queries + query) * keys;
  return weights.subarray(start, start + keys);
}

/** Return the weights of a query: of a head from 0, or the "mean" or "max" of the heads. */
function rowOfMap(map, layer, head, query) {
  if (head !== 'mean' && head !== 'max') return rowOfHead(map, layer, head, query);
  const [, heads, , keys] = map.shape;
  const result = new Float32Array(keys);
  for (let one = 0; one < heads; one++) {
    rowOfHead(map, layer, one, query).forEach((weight, key) => {
      result[key] = head === 'max' ? Math.max(result[key], weight) : result[key] + weight / heads;
    });
  }
  return result;
}

/** Return the heads of a map, and their summaries if there are several. */
function headsOf({ shape: [, heads] }) {
  return [...Array(heads).keys(), ...(heads > 1 ? ['mean', 'max'] : [])];
}

const headName = (head) => (typeof head === 'number' ? `${head + 1}` : head);
const headTitle = (head) =>
  typeof head === 'number' ? `head ${head + 1}` : `${head} of the heads`;

/** Draw a map, one pixel for each weight: the colour of the text, as opaque as the weight. */
function drawMap(canvas, rowOf, rows, columns) {
  const [down, across] = [rows, columns].map(({ length }) => Math.ceil(length / MOST_PIXELS));
  const queries = rows.filter((_, i) => i % down === 0);
  const keys = columns.filter((_, i) => i % across === 0);
  if (!canvas.isConnected || !queries.length || !keys.length) return;
  [canvas.width, canvas.height] = [keys.length, queries.length];
  canvas.style.aspectRatio = `${Math.max(columns.length, 1)} / ${rows.length}`;
  const colour = getComputedStyle(canvas).color.match(/[\d.]+/g).map(Number);
  const context = canvas.getContext('2d');
  const image = context.createImageData(keys.length, queries.length);
  queries.forEach((query, i) => {
    const weights = rowOf(query);
    keys.forEach((key, j) => {
      const pixel = [...colour.slice(0, 3), Math.round(255 * weights[key])];
      image.data.set(pixel, 4 * (i * keys.length + j));
    });
  });
  context.putImageData(image, 0, 0);
}

/** Return a button with the small map of a head; rows and columns are places of words. */
function mapButton(map, layer, head, rows, columns, attributes) {
  const canvas = element('canvas');
  const band = element('span', { class: 'band' });
  requestAnimationFrame(() =>
    drawMap(canvas, (query) => rowOfMap(map, layer, head, query), rows, columns),
  );
  return element(
    'button',
    { type: 'button', 'data-layer': layer, 'data-head': head, ...attributes },
    element('span', { class: 'map' }, canvas, band),
    element('span', { 'aria-hidden': 'true' }, headName(head)),
  );
}

/** Return a table of weights in percent; a cell that is pointed at or has the focus is read out. */
function weightTable({ queries, keys }, caption, rowOf, rows, columns, attributes = () => ({})) {
  const readout = element('p', { class: 'readout', 'aria-live': 'polite' }, 'Point at a number.');
  const lines = rows.map((query) => {
    const weights = rowOf(query);
    const cells = columns.map((key) => {
      const cell = element('td', { tabindex: -1, 'data-key': key }, `${Math.round(100 * weights[key])}`);
      return setNumber(cell, 'weight', weights[key]);
    });
    return element('tr', attributes(query), rowHead(tokenText(queries[query])), ...cells);
  });
  const body = element('tbody', {}, ...lines);
  const heads = columns.map((key) => columnHead(tokenText(keys[key])));
  const read = ({ target }) => {
    const cell = target.closest('td');
    const at = lines.indexOf(cell?.parentElement);
    if (at < 0) return;
    const key = Number(cell.dataset.key);
    const weight = rowOf(rows[at])[key].toFixed(4);
    const words = [tokenText(queries[rows[at]]), ' → ', tokenText(keys[key])];
    readout.replaceChildren(...words, ': ', element('strong', {}, weight));
    heads.forEach((head, i) => head.classList.toggle('at', columns[i] === key));
    lines.forEach((line, i) => line.classList.toggle('at', i === at));
  };
  body.addEventListener('pointerover', read);
  body.addEventListener('focusin', read);
  moveByArrows(body, 'td', columns.length);
  reach(body, body.querySelector('td'), 'td');
  const table = element(
    'table',
    { class: 'weights', role: 'grid' },
    element('caption', {}, caption),
    element('thead', {}, element('tr', {}, element('td'), ...heads)),
    body,
  );
  return element('div', {}, readout, element('div', { class: 'scroll' }, table));
}

/** Fill the document of a notebook's frame with a map of one layer. */
function showWeights(map) {
  map.weights = Float32Array.from(map.weights);
  const [rows, columns] = [map.queries, map.keys].map((words) => [...words.keys()]);
  const caption = 'Weights in %: each row is a query, each column a key';
  const table = element('div');
  const choose = (chosen) => {
    const rowOf = (query) => rowOfMap(map, 0, chosen, query);
    table.replaceChildren(weightTable(map, `${caption} (${headTitle(chosen)})`, rowOf, rows, columns));
    buttons.forEach((each, i) => each.setAttribute('aria-pressed', heads[i] === chosen));
  };
  const heads = headsOf(map);
  const buttons = heads.map((head) =>
    mapButton(map, 0, head, rows, columns, {
      'aria-label': headTitle(head),
      click: () => choose(head),
    }),
  );
  const maps = element('div', { class: 'maps', hidden: heads.length === 1 }, ...buttons);
  moveByArrows(maps);
  document.body.append(element('main', {}, maps, table));
  choose(0);
  reach(maps, buttons[0]);
  const fit = () => (frameElement.style.height = `${document.documentElement.offsetHeight + 4}px`);
  if (window.frameElement) new ResizeObserver(fit).observe(document.body);
}
