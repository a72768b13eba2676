'use strict';

// Two columns of tokens, and a line for each weight between them.

const ROW = 32; // height of a token in pixels, as in style.css
const FAINTEST = 0.01; // smallest weight with a line; half the mean weight where that is smaller
const CROWDED = 16; // queries; of more, only the largest weights of each have lines
const LARGEST = 3; // weights of each query of many
const MOST_LINES = 20000; // pairs of tokens; above it, only selected tokens have lines

/** Draw the tokens of both columns. */
function drawTokens() {
  const { queries, keys } = currentMap();
  const isCross = page.kind === 'cross';
  byId('queries-title').textContent = isCross ? 'Predicted' : 'From';
  byId('keys-title').textContent = isCross ? 'Source' : 'To';
  const keyStack = page.kind === 'decoder' ? 'decoder' : 'encoder';
  const { stacks, continuation = 0 } = page.example;
  const unknownIn = (stack) => stacks[stack].unknown ?? [];
  const sides = [
    ['query', queries, isCross ? [] : unknownIn(queryStack())],
    ['key', keys, unknownIn(keyStack)],
  ];
  for (const [side, labels, unknown] of sides) {
    const items = shownPlaces(labels).map((place) => {
      const token = { type: 'button', class: 'token', 'data-place': place, 'data-side': side };
      const isQuery = side === 'query' || !isCross;
      const query = side === 'query' ? { 'data-stack': queryStack() } : {};
      const attributes = { ...token, ...query, click: isQuery && togglePinned };
      const button = element('button', attributes, tokenText(labels[place]));
      if (unknown.includes(place)) {
        button.firstChild.className = 'unknown';
        button.append(element('span', { class: 'spoken' }, ' (unknown word)'));
      }
      if (place >= labels.length - continuation) {
        button.firstChild.className = 'added';
        button.append(element('span', { class: 'spoken' }, ' (added by the model)'));
      }
      return element('li', {}, button);
    });
    fillButtons(byId(side === 'query' ? 'queries' : 'keys'), items);
  }
}

function togglePinned(event) {
  const place = Number(event.currentTarget.dataset.place);
  if (!page.pinned.delete(place)) page.pinned.add(place);
  update();
  revealWorked();
}

/** Draw the lines of the tokens that are pointed at or selected, and shade their weights. */
function drawLines() {
  const { queries, keys } = currentMap();
  const [shownQueries, shownKeys] = [queries, keys].map(shownPlaces);
  const isKey = page.pointed?.side === 'key';
  const active = isKey ? shownQueries : activeQueries();
  const areAll = active.length === shownQueries.length;
  const isLarge = areAll && shownQueries.length * shownKeys.length > MOST_LINES;
  const rows = new Map(isLarge ? [] : active.map((query) => [query, rowOf(query)]));
  const faintest = Math.min(FAINTEST, 0.5 / keys.length);
  const height = Math.max(shownQueries.length, shownKeys.length);
  const links = byId('links');
  links.setAttribute('viewBox', `0 0 100 ${height}`);
  links.style.height = `${height * ROW}px`;
  const isCrowded = areAll && !isKey && shownQueries.length > CROWDED;
  const paths = [];
  for (const [query, head, weights] of linesOf(rows)) {
    const from = shownQueries.indexOf(query) + 0.5;
    const most = isCrowded ? new Set(largest(weights, LARGEST)) : null;
    shownKeys.forEach((key, at) => {
      const weight = weights[key];
      if (most && !most.has(key)) return;
      if (weight < faintest || (isKey && key !== page.pointed.place)) return;
      const path = document.createElementNS(links.namespaceURI, 'path');
      path.setAttribute('d', `M0 ${from}C45 ${from} 55 ${at + 0.5} 100 ${at + 0.5}`);
      path.setAttribute('stroke-width', (0.8 + 6 * weight).toFixed(2));
      path.setAttribute('stroke-opacity', (areAll ? weight : Math.sqrt(weight)).toFixed(3));
      paths.push(page.inColours ? setHue(path, head) : path);
    });
  }
  links.replaceChildren(...paths);
  const toKeys = meanOfRows([...rows.values()], keys.length);
  shade('keys', (key) => (isKey ? Number(key === page.pointed.place) : toKeys[key]));
  shade('queries', (query) => (isKey && rows.size ? rows.get(query)[page.pointed.place] : 0));
  for (const token of byId('queries').querySelectorAll('button')) {
    const place = Number(token.dataset.place);
    token.setAttribute('aria-pressed', page.pinned.has(place));
    token.classList.toggle('active', !isKey && !areAll && active.includes(place));
  }
  byId('caption').replaceChildren(...captionOf(isLarge ? [] : active, rows, toKeys));
  byId('clear').hidden = !page.pinned.size;
}

/** Return query, head and weights of each line: those of the rows, or of all heads in colours. */
function linesOf(rows) {
  if (!page.inColours) return [...rows].map(([query, weights]) => [query, page.head, weights]);
  const heads = headsOf(currentMap()).filter((head) => typeof head === 'number');
  return [...rows.keys()].flatMap((query) =>
    heads.map((head) => [query, head, rowOfMap(currentMap(), page.layer, head, query)]),
  );
}

const setHue = (node, head) => setNumber(node, 'hue', (head * 0.382) % 1); // neighbours differ

/** Give the choice of each head the colour of its lines. */
function colourHeads() {
  byId('links').classList.toggle('coloured', page.inColours);
  byId('heads').classList.toggle('coloured', page.inColours);
  byId('heads').querySelectorAll('span').forEach((span, head) => setHue(span, head));
}

function shade(id, weightOf) {
  for (const token of byId(id).querySelectorAll('button')) {
    setNumber(token, 'weight', weightOf(Number(token.dataset.place)));
  }
}

/** Say in a sentence what is drawn. */
function captionOf(active, rows, toKeys) {
  const { queries, keys, title, layers } = currentMap();
  const where = `${title}, layer ${layers[page.layer]}, ${headTitle(page.head)}: `;
  const strong = (place, labels) => element('strong', {}, tokenText(labels[place]));
  if (page.pointed?.side === 'key') {
    const { place } = page.pointed;
    const weights = new Map([...rows].map(([query, row]) => [query, row[place]]));
    const column = queries.map((_, query) => weights.get(query) ?? 0);
    return [
      where,
      strong(place, keys),
      ' is attended to by ',
      largestWeights(queries, column, active),
    ];
  }
  const shown = shownPlaces(keys);
  const sum = shown.reduce((total, key) => total + toKeys[key], 0);
  const hidden =
    sum < 0.995 && !page.showsSpecial ? ` (${percent(1 - sum)} is on hidden tokens)` : '';
  const found = [largestWeights(keys, toKeys, shown), hidden];
  const verb = page.kind === 'cross' ? ' is predicted from ' : ' attends to ';
  if (active.length === 1) return [where, strong(active[0], queries), verb, ...found];
  if (!active.length) return [where, 'select a token to draw its lines.'];
  const isAll = active.length === shownPlaces(queries).length;
  if (!isAll) return [where, `${active.length} tokens, on average: ${found.join('')}`];
  const few = `; lines for the ${LARGEST} largest weights of each`;
  return [where, `all tokens${active.length > CROWDED ? few : ''}.`];
}
