'use strict';

// Decoding with a model: the keys and values of the tokens read so far are kept.

const NUM_ALTERNATIVES = 5; // tokens of each step that are listed with their probabilities

/** Return the places of the largest numbers, the largest first; of equal ones the first. */
function largest(numbers, count) {
  const places = [];
  for (let i = 0; i < numbers.length; i++) {
    if (places.length === count && !(numbers[i] > numbers[places[count - 1]])) continue;
    let at = places.length;
    while (at > 0 && numbers[i] > numbers[places[at - 1]]) at -= 1;
    places.splice(at, 0, i);
    if (places.length > count) places.pop();
  }
  return places;
}

/** Return a copy of a state that can be extended. */
function fork(state) {
  const mapped = (object, change) =>
    Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value)]));
  const copied = (memory) => mapped(memory, (heads) => heads.map((vectors) => [...vectors]));
  return { length: state.length, layers: state.layers.map((block) => mapped(block, copied)) };
}

/**
 * Beam search: follow the most probable hypotheses; each that ends makes the beam narrower.
 *
 * Returns the finished hypotheses, the best first. `ids` are those of the source, or of the prompt
 * of a decoder alone.
 */
function beam(model, ids, numBeams, maxTokens) {
  const encoded = encode(model, ids);
  const prompt = encoded ? model.begin : ids;
  const longest = (model.target_embedding.max_length ?? Infinity) - (encoded ? 0 : ids.length);
  const room = Math.min(maxTokens, longest);
  const penalty = (length) => ((5 + length) / 6) ** model.length_penalty;
  const state = newState(model.decoder);
  let live = [{ ids: [], total: 0, logProbs: [], alternatives: [], state }];
  const finished = [];
  for (let length = 1; length <= room && live.length; length++) {
    const extensions = live.flatMap((hypothesis) => {
      const read = length === 1 ? prompt : hypothesis.ids.slice(-1);
      const { features } = decode(model, hypothesis.state, read, encoded);
      const logProbs = logSoftmax(logitsOf(model, features.at(-1)));
      const listed = largest(logProbs, NUM_ALTERNATIVES);
      const alternatives = listed.map((id) => [model.target.labels[id], Math.exp(logProbs[id])]);
      return largest(logProbs, numBeams).map((id) => ({
        ids: [...hypothesis.ids, id],
        total: hypothesis.total + logProbs[id],
        logProbs: [...hypothesis.logProbs, logProbs[id]],
        alternatives: [...hypothesis.alternatives, alternatives],
        state: hypothesis.state,
      }));
    });
    const best = largest(extensions.map(({ total }) => total), numBeams - finished.length);
    live = [];
    for (const { state, total, ...hypothesis } of best.map((place) => extensions[place])) {
      const ends = hypothesis.ids.at(-1) === model.end || length === room;
      if (ends) finished.push({ ...hypothesis, score: total / penalty(length) });
      else live.push({ ...hypothesis, total, state: numBeams > 1 ? fork(state) : state });
    }
  }
  return finished.sort((a, b) => b.score - a.score);
}

/** Return probabilities by temperature, top-k and top-p, in this order; what is left out has 0. */
function keptProbabilities(logits, { temperature, topK, topP }) {
  const probabilities = softmax(logits.map((logit) => logit / temperature));
  const order = largest(probabilities, Math.min(topK, logits.length));
  const total = order.reduce((sum, id) => sum + probabilities[id], 0);
  const kept = new Float32Array(logits.length);
  let above = 0; // probability of the more likely tokens
  for (const id of order) {
    if (topP < 1 && above >= topP && above > 0) break;
    kept[id] = probabilities[id] / total;
    above += kept[id];
  }
  return kept.map((probability) => probability / above);
}

/** Draw each token by its probability; returns what `beam` returns of one hypothesis. */
function sample(model, ids, maxTokens, settings, random = Math.random) {
  const encoded = encode(model, ids);
  const prompt = encoded ? model.begin : ids;
  const longest = (model.target_embedding.max_length ?? Infinity) - (encoded ? 0 : ids.length);
  const room = Math.min(maxTokens, longest);
  const state = newState(model.decoder);
  const found = { ids: [], logProbs: [], alternatives: [], score: 0 };
  while (found.ids.length < room && found.ids.at(-1) !== model.end) {
    const read = found.ids.length ? found.ids.slice(-1) : prompt;
    const { features } = decode(model, state, read, encoded);
    const kept = keptProbabilities(logitsOf(model, features.at(-1)), settings);
    let left = random();
    const drawn = kept.findIndex((probability) => (left -= probability) < 0);
    const id = drawn >= 0 ? drawn : largest(kept, 1)[0]; // a rounded sum can be less than 1
    found.ids.push(id);
    found.logProbs.push(Math.log(kept[id]));
    const listed = largest(kept, NUM_ALTERNATIVES);
    found.alternatives.push(listed.map((each) => [model.target.labels[each], kept[each]]));
  }
  const total = found.logProbs.reduce((sum, number) => sum + number, 0);
  found.score = total / ((5 + found.ids.length) / 6) ** model.length_penalty;
  return found;
}
