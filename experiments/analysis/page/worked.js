'use strict';

// How the weights of selected queries were made: each step with its sentence and its numbers.

const FIRST = 6; // numbers of a vector that are shown; the others are folded
const FIRST_OF_KEY = 2; // the same in a table
const MOST_WORKED = 2; // queries side by side

const TUTORIAL = {
  words: ['01_words_to_vectors', 'Words to vectors'],
  query: ['02_one_query', 'One query by hand'],
  scale: ['03_scale', 'Why √d'],
  masks: ['04_masks', 'Masks'],
  heads: ['05_heads', 'Heads'],
  positions: ['06_positions', 'Positions'],
  block: ['07_block', 'A block from scratch'],
};

/** Return the name of a page of the tutorial, as a link where the page is a part of its site. */
function tutorialPage(name) {
  const [file, title] = TUTORIAL[name];
  const text = `tutorial, page ${Number(file.slice(0, 2))}: ${title}`;
  const folder = document.documentElement.dataset.tutorial;
  const link = folder && element('a', { href: `${folder}${file}.html`, target: '_top' }, text);
  return element('small', {}, link || text);
}

const decimal = (number, digits = 2) => number.toFixed(digits).replace('-', '−');
const listOf = (numbers) =>
  element('span', { class: 'numbers' }, [...numbers].map((each) => decimal(each)).join('  '));

/** Return the first numbers of a vector, and the others folded. */
function vectorNumbers(vector) {
  const rest = vector.length - FIRST;
  const folded = element('summary', {}, `${rest} more`);
  return element(
    'div',
    { class: 'vector' },
    listOf(vector.slice(0, FIRST)),
    rest > 0 ? element('details', {}, folded, listOf(vector.slice(FIRST))) : '',
  );
}

/** Draw the calculation of the queries that were selected last. */
function drawWorked() {
  const shown = [...page.pinned].slice(-MOST_WORKED);
  const note = workedNote();
  byId('worked').hidden = !shown.length;
  byId('worked-note').textContent = note;
  byId('worked-queries').replaceChildren(...(note ? [] : shown.map(workedQuery)));
}

/** Return why no calculation can be shown, or "". */
function workedNote() {
  if (!page.model) return 'The model is not in this page, see “Notes”: no calculation can be shown.';
  if (typeof page.head !== 'number') return 'Choose one head: each has its own query and keys.';
  return '';
}

/** Scroll so far that the beginning of the calculation is visible. */
function revealWorked() {
  const { top } = byId('worked').getBoundingClientRect();
  const most = 0.55 * window.innerHeight;
  if (!byId('worked').hidden && top > most) window.scrollBy(0, top - most);
}

/** Return the article of one query. */
function workedQuery(query) {
  const { queries, title, layers } = currentMap();
  const found = calculationOf(page.example, page.kind, page.layer, page.head, query);
  const id = `worked-${query}`;
  const close = element(
    'button',
    {
      type: 'button',
      'aria-label': `Close ${visibleText(queries[query])}`,
      click: () => {
        page.pinned.delete(query);
        update();
        byId('queries').querySelector(`[data-place="${query}"]`)?.focus();
      },
    },
    'Close',
  );
  const where = `${title}, layer ${layers[page.layer]}, ${headTitle(page.head)}`;
  const place = ` (word ${query + 1}) in ${where}`;
  const heading = element('h3', { id }, tokenText(queries[query]), place);
  const steps = stepsOfQuery(found, query).map(([name, tutorial, text, ...content], number) =>
    element(
      'li',
      {},
      element('h4', {}, `${number + 1}. ${name} `, tutorialPage(tutorial)),
      element('p', {}, ...[text].flat()),
      ...content,
    ),
  );
  return element(
    'article',
    { 'aria-labelledby': id },
    element('div', { class: 'title' }, heading, close),
    element('ol', {}, ...steps),
  );
}

/** Return name, page of the tutorial, sentences and numbers of each step. */
function stepsOfQuery(found, query) {
  const { options, scores, allowed, weights } = found;
  const { keys } = currentMap();
  const best = largest(weights, 1)[0];
  const word = () => element('strong', {}, tokenText(keys[best]));
  const powers = scores.map((score, s) => (allowed[s] ? Math.exp(score) : 0));
  const total = powers.reduce((sum, power) => sum + power, 0);
  const width = found.query.length;
  const number = currentMap().layers[page.layer];
  const begin = options.hasNormBefore
    ? [['Norm', 'block', normSentence(page.example.attention[page.kind][page.layer].part.norm), vectorNumbers(found.normalized)]]
    : [];
  return [
    ['Vector', 'words', vectorSentence(found, query, number), vectorNumbers(found.vector)],
    ...begin,
    [
      'Query',
      options.isRotated ? 'positions' : 'query',
      `The vector times W_Q, what the word looks for: ${width} numbers${changed(options)}.`,
      vectorNumbers(found.query),
    ],
    [
      'Keys',
      'query',
      `Each vector${options.isCross ? ' that the encoder returned' : ''} times W_K: what a word ` +
        `offers to be found by${changed(options)}.`,
    ],
    [
      'Products',
      'query',
      ['Query times key, number by number, and summed; for ', word(), `: ${sumText(found, best)}.`],
    ],
    ['Scores', options.hasDistances ? 'positions' : 'scale', scoreSentence(found)],
    ['Mask', 'masks', maskSentence(found)],
    [
      'Softmax',
      'query',
      [
        `Each weight is e^score, divided by the sum ${powerText(total)} of all; for `,
        word(),
        `: ${powerText(powers[best])} / ${powerText(total)} = ${decimal(weights[best], 4)}.`,
      ],
    ],
    [
      'Weight × value',
      'query',
      'Each vector times W_V is its value: what the word contributes, by its weight.',
      keysTable(found, powers, query),
    ],
    ['Sum', 'query', 'The weighted values of all words, added.', vectorNumbers(found.sum)],
    [
      'Output',
      'heads',
      `The sums of ${options.heads === 1 ? 'the head' : `all ${options.heads} heads, side by side`}, ` +
        `times W_O${options.hasOutputNorm ? ', and a norm' : ''}: what attention writes. This head's part:`,
      vectorNumbers(found.part),
      element('p', {}, 'All heads together, with the bias:'),
      vectorNumbers(found.change),
    ],
    [
      'New vector',
      'block',
      `The vector of step 1 plus this output${options.hasNormAfter ? ', and a norm' : ''}: ` +
        'attention changes a word, it does not replace it (residual connection).',
      vectorNumbers(found.result),
    ],
  ];
}

const powerText = (power) => (power < 1000 ? decimal(power, 3) : power.toPrecision(4));

/** Return what happens to queries and keys after their products with matrices. */
function changed({ isRotated, normalizesQueries }) {
  return `${normalizesQueries ? ', normalized' : ''}${isRotated ? ', rotated by its position' : ''}`;
}

/** Return where the vector of a query comes from. */
function vectorSentence({ vector, options }, query, layer) {
  const { stacks } = page.example;
  const width = `${vector.length} numbers`;
  if (options.isCross) {
    const read = element('strong', {}, tokenText(stacks.decoder.labels[query]));
    return [`The decoder has read `, read, ` and the tokens before it: ${width}, from which the next token is predicted.`];
  }
  if (layer === 1) {
    const { source_embedding: source, target_embedding: target } = page.model;
    const { positions } = (page.kind === 'encoder' && source) || target;
    return `${width} that the model has learned for this word${positions ? ', plus those of its place' : ''}.`;
  }
  return `${width} that layer ${layer - 1} returned for this word; they depend on the words around it.`;
}

function normSentence({ bias }) {
  const scaledBy = bias ? 'shifted and divided to mean 0 and variance 1' : 'divided by their root mean square';
  return `The same numbers, ${scaledBy}, times learned factors: no word dominates by its size.`;
}

/** Return the product of query and key as the sum of its first terms. */
function sumText({ query, keys, products }, best) {
  const term = (i) => `${factor(query[i])}·${factor(keys[best][i])}`;
  const terms = [...query.keys()].slice(0, FIRST_OF_KEY).map(term).join(' + ');
  const more = query.length > FIRST_OF_KEY ? ' + …' : '';
  return `${terms}${more} = ${decimal(products[best], 3)}`;
}

const factor = (number) => (number < 0 ? `(${decimal(number)})` : decimal(number));

function scoreSentence({ query, scale, options }) {
  const isRoot = Math.abs(scale * Math.sqrt(query.length) - 1) < 1e-6;
  const text = isRoot
    ? `Divided by √${query.length} = ${decimal(Math.sqrt(query.length), 3)}, so that their size does not grow with the number of terms`
    : `Times ${decimal(scale, 3)}`;
  const distances = options.hasDistances ? ', less for distant words (ALiBi)' : '';
  const bound = options.softcap === null ? '' : `, bounded by ±${options.softcap} (soft cap)`;
  return `${text}${distances}${bound}.`;
}

function maskSentence({ options, allowed }) {
  const hidden = allowed.filter((each) => !each).length;
  const reasons = [
    options.isCausal && 'words after this one are not written yet',
    options.window !== null && `words more than ${options.window} places away are out of reach`,
  ].filter(Boolean);
  if (!reasons.length) return 'No word is hidden here: every score counts.';
  const count = `${hidden} of ${allowed.length} words are hidden, with the score −∞`;
  return `${count}: ${reasons.join(', and ')}.`;
}

/** Return the table of all keys, from key to weighted value, and their other numbers folded. */
function keysTable(found, powers, query) {
  const { keys } = currentMap();
  const head = ['word', 'key', 'q·k', 'score', 'e^score', 'weight', 'weight × value'];
  const first = (vector) => element('td', {}, listOf(vector.slice(0, FIRST_OF_KEY)), ' …');
  const rows = keys.map((label, s) => {
    const isAllowed = found.allowed[s];
    return element(
      'tr',
      {},
      rowHead(tokenText(label)),
      first(found.keys[s]),
      element('td', {}, decimal(found.products[s], 3)),
      element('td', {}, isAllowed ? decimal(found.scores[s], 3) : '−∞'),
      element('td', {}, powerText(powers[s])),
      setNumber(element('td', {}, found.weights[s].toFixed(4)), 'weight', found.weights[s]),
      first(found.terms[s]),
    );
  });
  const columns = head.map((name) => columnHead(name));
  const all = element('dl');
  const fill = () => {
    const others = keys.flatMap((label, s) => [
      element('dt', {}, tokenText(label)),
      element('dd', {}, 'key ', listOf(found.keys[s])),
      element('dd', {}, 'weight × value ', listOf(found.terms[s])),
    ]);
    all.replaceChildren(...others);
  };
  return element(
    'div',
    {},
    tableOf(`From keys to weighted values, for query ${query + 1}`, columns, rows, 'keys'),
    element(
      'details',
      { toggle: fill },
      element('summary', {}, 'All numbers of keys and weighted values'),
      all,
    ),
  );
}
