'use strict';

// The numbers behind the attention of one query in one head.

/**
 * Return each step from the vector of a query to its new vector.
 *
 * `pass` is of `attendedBy`; layer, head and query are counted from 0. The result has the vector
 * `[D]` before and after the norm, query `[H]`, keys and values of S words, then for each key its
 * product, score, whether the mask allows it, weight and weighted value, their sum `[Hv]`, what this
 * head and all heads write `[D]`, and the new vector `[D]`.
 */
function calculationOf(pass, kind, layer, head, query) {
  const { stack, part, memory } = pass.attention[kind][layer];
  const { sublayer, placement, norm, output_norm: outputNorm } = part;
  const vector = memory.inputs[0][query];
  const keys = memory.key[sharedHead(memory.key, memory, head)];
  const values = memory.value[sharedHead(memory.value, memory, head)];
  const { scale, score, mask } = scoringOf(stack, sublayer, memory, head, query);
  const products = keys.map((key) => dot(memory.query[head][query], key));
  const weights = weightsOf(stack, sublayer, memory, head, query);
  const sums = memory.query.map((_, one) => {
    const read = memory.value[sharedHead(memory.value, memory, one)];
    return weightedSum(weightsOf(stack, sublayer, memory, one, query), read);
  });
  const { kernel } = sublayer.output;
  const size = kernel.data.length / sums.length; // of the rows of one head
  const rows = kernel.data.subarray(head * size, (head + 1) * size);
  const written = linear(concatenate(sums), sublayer.output);
  const change = normalize(written, outputNorm);
  const added = add(vector, change);
  return {
    vector,
    normalized: placement === 'pre' ? normalize(vector, norm) : vector,
    query: memory.query[head][query],
    keys,
    values,
    products,
    scale,
    scores: products.map((product, s) => score(scale * product, s)),
    allowed: keys.map((_, s) => mask(s)),
    weights,
    terms: values.map((value, s) => scaled(value, weights[s])),
    sum: sums[head],
    part: linear(sums[head], { kernel: { data: rows } }),
    written,
    change,
    result: placement === 'pre' ? added : normalize(added, norm),
    options: { ...optionsOf(stack, sublayer, part), heads: sums.length },
  };
}

/** Return what a layer does beside the steps that every layer has. */
function optionsOf(stack, layer, { placement, norm, output_norm: outputNorm }) {
  const isCross = layer.type === 'CrossAttention';
  return {
    isCross,
    isRotated: Boolean(layer.rotary),
    normalizesQueries: Boolean(layer.query_norm),
    hasNormBefore: placement === 'pre' && Boolean(norm),
    hasNormAfter: placement === 'post' && Boolean(norm),
    hasOutputNorm: Boolean(outputNorm),
    hasDistances: Boolean(stack.score) && !isCross,
    softcap: layer.softcap,
    isCausal: Boolean(stack.causal) && !isCross,
    window: layer.window ?? null,
  };
}
