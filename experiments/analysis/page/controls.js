'use strict';

// Controls of the page, and what happens when they change.

const NUM_BEAMS = 5; // translations of a typed sentence
const MOST_TOKENS = 200; // of a translation
const CONTINUED = 16; // tokens that a language model adds to a typed text
const WAIT = 250; // milliseconds after the last key before a typed sentence is read

const PANELS = {
  weights: ['Weights', weightsTable, () => true],
  translations: ['Translations', translationPanel, () => page.example.translations?.length],
  movement: ['Movement', movementTables, () => Object.keys(page.example.movement).length],
  heads: ['Heads', headsTable, () => page.data.heads.length],
  notes: ['Notes', notesPanel, () => true],
};

/** Show an example: a stored one, or what the model of the page has read. */
function showExample(example) {
  page.example = example;
  const kinds = ['encoder', 'decoder', 'cross'].filter((kind) => example.maps[kind]);
  if (!kinds.includes(page.kind)) page.kind = kinds.at(-1);
  page.pinned.clear();
  const [best] = example.translations ?? [];
  const text = example.translations?.[example.chosen ?? 0]?.text;
  const arrow = page.data.task === 'translation' ? '→' : '…';
  byId('reading').replaceChildren(element('bdi', {}, example.name),
    ...(best ? [element('span', { class: 'quiet' }, arrow), element('bdi', {}, text)] : []));
  choices('kinds', kinds, (kind) => kind, (kind) => showKind(kind), page.kind);
  showKind(page.kind);
}

/** Show a stored example. */
function showStored(number) {
  const stored = page.data.examples[number];
  for (const [kind, map] of Object.entries(stored.maps)) {
    if (typeof map.weights === 'string') Object.assign(map, { kind, weights: decodeWeights(map.weights) });
  }
  const isStored = Object.values(stored.maps).every((map) => map.weights);
  const ids = stored.translations[0]?.ids;
  const { encoder, decoder } = stored.stacks;
  const computed = isStored ? {} : passOf(encoder ?? decoder, encoder ? ids : decoder.ids);
  byId('status').textContent = '';
  showExample({ ...stored, ...computed });
}

/** Show another kind of attention: other words, layers and heads. */
function showKind(kind) {
  page.kind = kind;
  page.pinned.clear();
  page.pointed = null;
  const { layers, shape } = currentMap();
  page.layer = Math.min(page.layer, layers.length - 1);
  if (typeof page.head === 'number') page.head = Math.min(page.head, shape[1] - 1);
  const heads = [...Array(shape[1]).keys(), ...(shape[1] > 1 ? ['mean', 'max'] : [])];
  if (!heads.includes(page.head)) page.head = 0;
  choices('layers', [...layers.keys()], (layer) => layers[layer], (layer) => chooseHead(layer, page.head), page.layer);
  choices('heads', heads, (head) => (typeof head === 'number' ? head + 1 : head), (head) => chooseHead(page.layer, head), page.head);
  redraw();
}

/** Fill a group of radio buttons. */
function choices(id, values, nameOf, choose, chosen) {
  byId(id).replaceChildren(...values.map((value) => {
    const radio = { type: 'radio', name: id, value, checked: value === chosen, change: () => choose(value) };
    return element('label', {}, element('input', radio), element('span', {}, `${nameOf(value)}`));
  }));
}

/** Draw everything that depends on the words. */
function redraw() {
  drawWords();
  drawGrid();
  drawTabs();
  update();
}

/** Draw everything that depends on the layer, the head and the selected words. */
function update() {
  for (const [id, value] of [['layers', page.layer], ['heads', page.head]]) {
    for (const radio of byId(id).querySelectorAll('input')) radio.checked = radio.value === `${value}`;
  }
  drawPanel();
  drawPointed();
}

/** Draw what depends on the word that is pointed at. */
function drawPointed() {
  drawLines();
  markGrid();
  markPanel();
}

/** Point at the word of an element, or at the one with the focus of the keyboard. */
function pointAt(target) {
  const focused = document.activeElement?.matches(':focus-visible') ? document.activeElement : null;
  const node = target?.closest?.('[data-place]') ?? focused?.closest('[data-place]');
  const side = node?.dataset.side ?? 'query';
  const isShown = node && (side === 'key' || node.dataset.stack === queryStack());
  const pointed = isShown ? { side, place: Number(node.dataset.place) } : null;
  if (pointed?.side === page.pointed?.side && pointed?.place === page.pointed?.place) return;
  page.pointed = pointed;
  drawPointed();
}

/** Draw the tabs that the example has. */
function drawTabs() {
  const names = Object.keys(PANELS).filter((name) => PANELS[name][2]());
  if (!names.includes(page.panel)) [page.panel] = names;
  const title = (name) => (name === 'translations' && page.data.task !== 'translation' ? 'Predictions' : PANELS[name][0]);
  const tabs = names.map((name) => element('button', {
    type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': 'panel',
    'aria-selected': `${name === page.panel}`, click: () => choosePanel(name), focus: () => choosePanel(name),
  }, title(name)));
  fillButtons(byId('tabs'), tabs, names.indexOf(page.panel));
}

function choosePanel(name) {
  if (page.panel === name) return;
  page.panel = name;
  for (const tab of byId('tabs').children) tab.setAttribute('aria-selected', tab.id === `tab-${name}`);
  drawPanel();
  markPanel();
}

function drawPanel() {
  byId('panel').replaceChildren(...PANELS[page.panel][1]());
  byId('panel').setAttribute('aria-labelledby', `tab-${page.panel}`);
}

/** Mark the rows and steps of the words that are pointed at or selected. */
function markPanel() {
  const active = activeQueries();
  const areAll = active.length === shownPlaces(currentMap().queries).length;
  for (const node of byId('panel').querySelectorAll('[data-place]')) {
    const isActive = !areAll && page.pointed?.side !== 'key' && active.includes(Number(node.dataset.place));
    node.classList.toggle('active', isActive && node.dataset.stack === queryStack());
  }
}

function notesPanel() {
  const notes = [...page.data.notes, 'Stored weights are rounded to 1/255: each is off by at most 0.2 percentage points.'];
  return [element('ul', {}, ...notes.map((note) => element('li', {}, note)))];
}

/** Read a typed sentence with the model of the page, and show what it attends to. */
function readTyped(text) {
  const started = performance.now();
  const { model } = page;
  const read = readText(model, text);
  if (read.problem) {
    byId('status').textContent = text.trim() ? read.problem : '';
    return;
  }
  const source = { ids: read.ids, labels: read.labels, unknown: read.unknown };
  const isTranslation = model.kind === 'encoder_decoder';
  const found = beam(model, read.ids, NUM_BEAMS, isTranslation ? MOST_TOKENS : CONTINUED);
  const example = isTranslation ? passOf(source, found[0].ids) : continuation(source, found[0]);
  const texts = found.map(({ ids }, number) => {
    if (!isTranslation || !read.unknown.length) return writeText(model, ids);
    const pass = number ? passOf(source, ids) : example;
    return writeText(model, ids, copiedWords(model, pass, read));
  });
  const { tokens } = model[isTranslation ? 'target' : 'source'];
  example.translations = found.map(({ ids, score, logProbs, alternatives }, number) => ({
    ids, score, alternatives, text: texts[number], log_probs: logProbs, tokens: ids.map((id) => tokens[id]),
    confidence: Math.exp(meanOf(logProbs)), start: isTranslation ? 0 : read.ids.length - 1,
  })).slice(0, isTranslation ? NUM_BEAMS : 1);
  byId('example').value = '';
  showExample({ ...example, name: text });
  const words = read.unknown.map((place) => `“${read.labels[place]}”`).join(', ');
  const note = words ? ` Not in the vocabulary, read as a placeholder: ${words}.` : '';
  byId('status').textContent = `Computed in this page in ${Math.round(performance.now() - started)} ms.${note}`;
}

const meanOf = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;

/** Return what a language model attends to when it reads a text and its continuation. */
function continuation(source, best) {
  const pass = attendedBy(page.model, null, [...source.ids, ...best.ids]);
  pass.stacks.decoder.labels.splice(0, source.labels.length, ...source.labels);
  pass.stacks.decoder.unknown = source.unknown;
  for (const [kind, map] of Object.entries(pass.maps)) Object.assign(map, { kind, pass, model: page.model });
  return pass;
}

function start() {
  page.data = JSON.parse(byId('data').textContent);
  page.model = page.data.model && loadModel(page.data.model);
  const options = page.data.examples.map(({ name }, number) => element('option', { value: number }, name));
  byId('example').append(...options);
  byId('example').addEventListener('change', (event) => showStored(Number(event.target.value)));
  byId('special').addEventListener('change', (event) => {
    page.showsSpecial = event.target.checked;
    byId('special-note').hidden = page.showsSpecial;
    redraw();
  });
  byId('clear').addEventListener('click', () => {
    page.pinned.clear();
    byId('queries').querySelector('button')?.focus();
    update();
  });
  if (page.model) startTyping();
  page.layer = Infinity; // the last one
  ['queries', 'keys', 'grid', 'tabs'].forEach((id) => moveByArrows(byId(id)));
  document.addEventListener('pointerover', (event) => pointAt(event.target));
  document.addEventListener('focusin', (event) => pointAt(event.target));
  document.documentElement.addEventListener('pointerleave', () => pointAt(null));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawGrid);
  showStored(0);
}

function startTyping() {
  let timer = 0;
  const read = () => {
    clearTimeout(timer);
    readTyped(byId('text').value);
  };
  byId('typed').hidden = false;
  byId('typed').querySelector('button').textContent = page.model.kind === 'decoder' ? 'Continue' : 'Translate';
  byId('text').addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(read, WAIT);
  });
  byId('typed').addEventListener('submit', (event) => {
    event.preventDefault();
    read();
  });
}

if (typeof document !== 'undefined') start();
