'use strict';

// A Transformer. `loadModel` returns a tree with the names of the Python attributes, for instance
// `model.decoder.layers[0].self_attention.sublayer.query.kernel`. The memory of an attention layer
// contains what it has read: `memory.key[head][place]`, and the same of queries and values; its
// `inputs[0][place]` are the vectors before the norm.

const MOST_WEIGHTS = 4e6; // in the maps of one kind; of larger maps only rows are computed

/** Decode a model; of an encoder or a decoder alone both sides have the same tokens. */
function loadModel(data) {
  const model = withArrays(data);
  const embedding = model.target_embedding || model.embedding;
  return { ...model, target_embedding: embedding, target: model.target || model.source };
}

function withArrays(tree) {
  if (tree === null || typeof tree !== 'object') return tree;
  if (Array.isArray(tree)) return tree.map(withArrays);
  if ('float16' in tree) return { shape: tree.shape, data: decodeFloat16(tree.float16) };
  return Object.fromEntries(Object.entries(tree).map(([name, part]) => [name, withArrays(part)]));
}

/** One query of one head: weights = softmax(score(q kᵀ · scale)) over the keys of the mask. */
function attentionWeights(query, keys, scale, score, mask) {
  return softmax(keys.map((key, s) => (mask(s) ? score(scale * dot(query, key), s) : -Infinity)));
}

/** Return the scale, the score function and the mask of a head for the query at place t. */
function scoringOf(stack, layer, memory, head, t) {
  const scale = layer.scale ?? 1 / Math.sqrt(memory.query[head][t].length);
  const isCross = layer.type === 'CrossAttention'; // without a mask and distances
  const slope = stack.score && !isCross ? stack.score.slopes[head] : 0;
  const window = layer.window ?? Infinity;
  const score = (product, s) => softCap(product - slope * Math.abs(t - s), layer.softcap);
  const mask = (s) => isCross || (Math.abs(t - s) <= window && !(stack.causal && s > t));
  return { scale, score, mask };
}

/** Return the weights of a head for the query at place t. */
function weightsOf(stack, layer, memory, head, t) {
  const keys = memory.key[sharedHead(memory.key, memory, head)];
  const { scale, score, mask } = scoringOf(stack, layer, memory, head, t);
  return attentionWeights(memory.query[head][t], keys, scale, score, mask);
}

/** Return which key or value head a query head reads. */
function sharedHead(heads, memory, head) {
  return Math.floor((head * heads.length) / memory.query.length);
}

/** Add the queries, keys or values of vectors to a memory. */
function remember(layer, memory, kind, vectors, start) {
  const width = layer[kind].kernel.shape[2];
  vectors.forEach((vector, i) =>
    split(linear(vector, layer[kind]), width).forEach((head, n) => {
      const normalized = normalize(head, layer[`${kind}_norm`]);
      const isRotated = layer.rotary && kind !== 'value';
      const entry = isRotated ? rotate(normalized, start + i, layer.rotary.base) : normalized;
      (memory[kind][n] ??= []).push(entry);
    }),
  );
}

/** Attend from inputs to what was read, the inputs included, or to an encoder output. */
function attend(stack, layer, memory, inputs, encoderOutput, start) {
  const source = layer.type === 'CrossAttention' ? encoderOutput : inputs;
  remember(layer, memory, 'query', inputs, start);
  if (source === inputs || memory.key.length === 0) { // an encoder output is read once
    remember(layer, memory, 'key', source, start);
    remember(layer, memory, 'value', source, start);
  }
  return inputs.map((_, i) => {
    const outputs = memory.query.map((_, head) => {
      const values = memory.value[sharedHead(memory.value, memory, head)];
      return weightedSum(weightsOf(stack, layer, memory, head, start + i), values);
    });
    return linear(concatenate(outputs), layer.output);
  });
}

function feedForward({ up, gate, down, activation }, vector) {
  const activated = linear(vector, gate || up).map(ACTIVATIONS[activation]);
  return linear(gate ? multiply(activated, linear(vector, up)) : activated, down);
}

/** Add the output of a sublayer to its inputs, with norms before, after or inside. */
function residual({ placement, norm, output_norm: outputNorm }, inputs, apply) {
  const normalized = (vectors, norm) => vectors.map((vector) => normalize(vector, norm));
  const outputs = apply(placement === 'pre' ? normalized(inputs, norm) : inputs);
  const added = normalized(outputs, outputNorm);
  const sums = inputs.map((vector, i) => add(vector, added[i]));
  return placement === 'pre' ? sums : normalized(sums, norm);
}

/** Return the vector of a token: its row of the table, and what is added for its position. */
function embed({ positions, scale }, table, id, position) {
  const vector = scaled(row(table, id), scale);
  if (!positions) return vector;
  if (positions === 'sinusoidal') return add(vector, sinusoidal(position, vector.length));
  return add(vector, scaled(row(positions.table, position), positions.scale));
}

/** Return the state of a stack that has read nothing. */
function newState(stack) {
  const memory = (name) => [name, { inputs: [[]], query: [], key: [], value: [] }];
  const memories = (block) => Object.fromEntries(Object.keys(block).map(memory));
  return { length: 0, layers: stack.layers.map(memories) };
}

/** Map the vectors of tokens that follow those in a state; return those of every layer. */
function applyStack(stack, state, vectors, encoderOutput) {
  const hidden = [vectors];
  stack.layers.forEach((block, number) => {
    for (const [name, part] of Object.entries(block)) {
      const [layer, memory] = [part.sublayer, state.layers[number][name]];
      memory.inputs[0].push(...vectors);
      vectors = residual(part, vectors, (inputs) =>
        layer.type === 'FeedForward'
          ? inputs.map((vector) => feedForward(layer, vector))
          : attend(stack, layer, memory, inputs, encoderOutput, state.length),
      );
    }
    hidden.push(vectors);
  });
  state.length += vectors.length;
  return { hidden, features: vectors.map((vector) => normalize(vector, stack.norm)) };
}

/** Read a source; null for a decoder alone. */
function encode(model, ids) {
  if (!model.encoder) return null;
  const embedding = model.source_embedding || model.target_embedding;
  const table = embedding.tokens || model.target_embedding.tokens;
  const vectors = ids.map((id, place) => embed(embedding, table, id, place));
  const state = newState(model.encoder);
  return { state, ...applyStack(model.encoder, state, vectors) };
}

/** Read tokens that follow those in the state of the decoder. */
function decode(model, state, ids, encoded) {
  const { tokens } = model.target_embedding;
  const at = (i) => state.length + i;
  const vectors = ids.map((id, i) => embed(model.target_embedding, tokens, id, at(i)));
  return applyStack(model.decoder, state, vectors, encoded && encoded.features);
}

/** Return the scores of the next token. */
function logitsOf(model, vector) {
  if (model.output) return linear(vector, model.output);
  const { tokens, logit_scale: scale, logit_softcap: bound } = model.target_embedding;
  const logit = (_, id) => softCap(scale * dot(vector, row(tokens, id)), bound);
  return Float32Array.from({ length: tokens.shape[0] }, logit);
}

/**
 * Return what a model attends to, in the form of an example of the page, and its logits.
 *
 * An encoder-decoder predicts `targetIds`; a decoder alone reads them, and an encoder has none.
 */
function attendedBy(model, sourceIds, targetIds) {
  const labels = (side, ids) => ids.map((id) => model[side].labels[id]);
  const source = model.encoder ? labels('source', sourceIds) : [];
  const predicted = model.encoder && model.decoder ? labels('target', targetIds) : [];
  const pass = { stacks: {}, predicted, maps: {}, movement: {}, attention: {} };
  const encoded = encode(model, sourceIds);
  if (encoded) {
    pass.stacks.encoder = { labels: source };
    pass.movement.encoder = movement(encoded.hidden);
    addMaps(pass, 'encoder', model.encoder, encoded.state, source, source);
  }
  if (!model.decoder) return withLogits(pass, model, encoded.features);
  const read = encoded ? [...model.begin, ...targetIds.slice(0, -1)] : targetIds;
  const target = labels('target', read);
  const state = newState(model.decoder);
  const decoded = decode(model, state, read, encoded);
  pass.stacks.decoder = { labels: target };
  pass.movement.decoder = movement(decoded.hidden);
  addMaps(pass, 'decoder', model.decoder, state, target, target);
  addMaps(pass, 'cross', model.decoder, state, predicted, source);
  return withLogits(pass, model, decoded.features);
}

function withLogits(pass, model, features) {
  const logits = features.map((vector) => logitsOf(model, vector));
  return { ...pass, logits: concatenate(logits), logitsShape: [logits.length, logits[0].length] };
}

/** Return the cosine distance between each vector and that of the layer below. */
function movement(hidden) {
  const length = (vector) => Math.sqrt(dot(vector, vector));
  const distance = (a, b) => 1 - dot(a, b) / (length(a) * length(b) || 1);
  return hidden.slice(1).map((rows, l) => rows.map((row, t) => distance(row, hidden[l][t])));
}

/** Add the maps of one kind of attention of a stack to a pass. */
function addMaps(pass, kind, stack, state, queries, keys) {
  const isCross = kind === 'cross';
  const type = isCross ? 'CrossAttention' : 'SelfAttention';
  const found = stack.layers.flatMap((block, at) =>
    Object.entries(block)
      .filter(([, { sublayer }]) => sublayer.type === type)
      .map(([name, part]) => ({ stack, at, part, memory: state.layers[at][name] })),
  );
  if (!found.length) return;
  pass.attention[kind] = found;
  const layers = found.map(({ at }) => at + 1);
  const heads = found[0].memory.query.length;
  const shape = [layers.length, heads, queries.length, keys.length];
  const title = isCross ? 'cross-attention' : `${kind} self-attention`;
  pass.maps[kind] = { title, layers, shape, queries, keys, weights: allWeights(pass, kind, shape) };
}

/** Return the weights of a kind, in the order of its shape; null for too many. */
function allWeights(pass, kind, [layers, heads, queries, keys]) {
  const rows = layers * heads * queries;
  if (rows * keys > MOST_WEIGHTS) return null;
  const weights = new Float32Array(rows * keys);
  for (let at = 0; at < rows; at++) {
    const [layer, head] = [Math.floor(at / queries / heads), Math.floor(at / queries) % heads];
    weights.set(rowOfWeights(pass, kind, layer, head, at % queries), at * keys);
  }
  return weights;
}

/** Return the weights of one query of one head; layers, heads and queries are counted from 0. */
function rowOfWeights(pass, kind, layer, head, query) {
  const found = pass.attention[kind][layer];
  return weightsOf(found.stack, found.part.sublayer, found.memory, head, query);
}
