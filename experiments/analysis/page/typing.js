'use strict';

// What the model of the page attends to.

const NUM_BEAMS = 5; // translations of a typed sentence
const MOST_TOKENS = 200; // of a translation
const CONTINUED = 16; // tokens that a language model adds to a typed text
const WAIT = 250; // milliseconds after the last key before a typed sentence is read

/** Return what the model attends to; unknown words of the text that it reads keep their labels. */
function passOf(source, ids) {
  const isAlone = !page.model.encoder;
  const pass = attendedBy(page.model, isAlone ? [] : source.ids, ids);
  const stack = pass.stacks[isAlone ? 'decoder' : 'encoder'];
  stack.labels.splice(0, source.labels.length, ...source.labels);
  Object.assign(stack, { ids: isAlone ? ids : source.ids, unknown: source.unknown });
  for (const [kind, map] of Object.entries(pass.maps)) {
    map.compute = (layer, head, query) => rowOfWeights(pass, kind, layer, head, query);
  }
  return pass;
}

/** Translate a typed sentence, or continue it, and show what the model attends to. */
function readTyped(text) {
  const started = performance.now();
  const read = readText(page.model, text);
  if (read.problem) {
    showStored(page.stored);
    if (text) byId('status').textContent = `${read.problem} The page shows the stored example.`;
    return;
  }
  const { encoder, decoder } = page.model;
  const example = !decoder ? filled(read) : encoder ? translated(read) : continued(read);
  byId('example').value = 'typed';
  showExample({ ...example, name: text });
  const time = Math.round(performance.now() - started);
  byId('status').textContent = `Computed in this page in ${time} ms. ${exampleNote(example)}`;
}

/** Return sentences about the unknown words of an example, and about the tokens added to it. */
function exampleNote({ stacks, continuation }) {
  const { labels, unknown = [] } = stacks.encoder ?? stacks.decoder;
  const words = unknown.map((place) => `“${labels[place]}”`).join(', ');
  const copied = stacks.decoder && stacks.encoder ? ' and copied into the translation' : '';
  return [
    words && `Not in the vocabulary, read as a placeholder${copied}: ${words}.`,
    continuation && 'The model added the tokens in italics.',
    page.model && !page.model.decoder && !labels.includes('_') && 'Type _ for a word that is to be found.',
  ].filter(Boolean).join(' ');
}

function translated(read) {
  const { model } = page;
  const [own] = beam(model, read.ids, model.num_beams, MOST_TOKENS);
  const others = beam(model, read.ids, NUM_BEAMS, MOST_TOKENS);
  const isOther = ({ ids }) => `${ids}` !== `${own.ids}`;
  const found = [own, ...others.filter(isOther)].slice(0, NUM_BEAMS);
  const example = passOf(read, found[0].ids);
  const textOf = ({ ids }, rank) => {
    if (!read.unknown.length) return writeText(model, ids);
    return writeText(model, ids, copiedWords(model, rank ? passOf(read, ids) : example, read));
  };
  const translations = found.map((each, rank) => answerOf(each, model.target, textOf(each, rank)));
  return { ...example, translations };
}

function continued(read, best = beam(page.model, read.ids, 1, CONTINUED)[0]) {
  const { model } = page;
  const example = passOf(read, [...read.ids, ...(best?.ids ?? [])]);
  const text = writeText(model, example.stacks.decoder.ids);
  const translations = best ? [answerOf(best, model.target, text, read.ids.length - 1)] : [];
  return { ...example, translations, continuation: best?.ids.length };
}

/** Return the most probable words for each gap. */
function filled(read) {
  const { labels, special } = page.model.source;
  const example = passOf(read);
  const [, size] = example.logitsShape;
  const places = read.labels.flatMap((label, place) => (label === '_' ? [place] : []));
  const alternatives = places.map((place) => {
    const all = softmax(example.logits.subarray(place * size, (place + 1) * size));
    const words = all.subarray(special, labels.length - 1); // the gap is no word
    return largest(words, NUM_ALTERNATIVES).map((at) => [labels[special + at], words[at]]);
  });
  const tokens = alternatives.map(([[word]]) => word);
  const found = read.labels.slice(0, -1);
  places.forEach((place, number) => (found[place] = tokens[number]));
  const logProbs = alternatives.map(([[, probability]]) => Math.log(probability));
  const answer = { text: found.join(' '), places, tokens, log_probs: logProbs, alternatives };
  return { ...example, translations: places.length ? [answer] : [] };
}

/** Write another answer to the example by chance, and show what the model attends to. */
function writeByChance() {
  const { example, model, settings } = page;
  const { encoder, decoder } = example.stacks;
  if (model.encoder) {
    const found = sample(model, encoder.ids, MOST_TOKENS, settings);
    const answer = { ...answerOf(found, model.target, writeText(model, found.ids)), sampled: true };
    page.example = { ...example, translations: [...example.translations, answer] };
    chooseTranslation(example.translations.length);
  } else {
    const length = decoder.ids.length - (example.continuation ?? 0);
    const read = { ids: decoder.ids.slice(0, length), labels: decoder.labels.slice(0, length) };
    read.unknown = (decoder.unknown ?? []).filter((place) => place < length);
    const found = continued(read, sample(model, read.ids, CONTINUED, settings));
    showExample({ ...found, name: example.name });
  }
  byId('by-chance').focus();
}

/** Return a hypothesis in the form of a stored translation; `start` is its first query. */
function answerOf({ ids, score, logProbs, alternatives }, { labels }, text, start = 0) {
  const mean = logProbs.reduce((sum, number) => sum + number, 0) / logProbs.length;
  return {
    ...{ ids, score, text, alternatives, log_probs: logProbs },
    places: ids.map((_, step) => start + step),
    ...{ tokens: ids.map((id) => labels[id]), confidence: Math.exp(mean) },
  };
}

const COMPLETIONS = 8;

/** List the words of the model that begin as the last word of a text does. */
function complete(text) {
  const [, before, begun] = text.match(/^(.*?)([^\s]*)$/su);
  const fits = (word) => word !== begun && word.toLowerCase().startsWith(begun.toLowerCase());
  const found = begun ? [...idsOf(page.model.source).keys()].filter(fits).slice(0, COMPLETIONS) : [];
  const options = found.map((word) => element('option', { value: `${before}${word}` }));
  byId('completions').replaceChildren(...options);
}

/** List the words that a model knows, and complete them while they are typed. */
function startCompletion() {
  const words = [...idsOf(page.model.source).keys()].sort((a, b) => a.localeCompare(b));
  const [summary, list] = byId('known').children;
  byId('known').hidden = false;
  summary.textContent = `The ${words.length} words that the model knows`;
  list.textContent = words.join(' ');
  byId('text').addEventListener('input', () => complete(byId('text').value));
}

/** Read sentences while they are typed. */
function startTyping() {
  if (page.model.source.kind === 'word') startCompletion();
  let timer = 0;
  const read = () => {
    clearTimeout(timer);
    readTyped(byId('text').value);
  };
  byId('typed').hidden = false;
  const { encoder, decoder } = page.model;
  const verb = !decoder ? 'Fill' : encoder ? 'Translate' : 'Continue';
  byId('typed').querySelector('button').textContent = verb;
  if (!decoder) byId('text').placeholder = '_ is a gap';
  byId('text').addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(read, WAIT);
  });
  byId('typed').addEventListener('submit', (event) => {
    event.preventDefault();
    read();
  });
}
