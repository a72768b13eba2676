'use strict';

// A vector is a Float32Array, a sequence is an array of vectors, and a matrix is {shape, data} with
// its rows one after another in the Float32Array `data`.

const POWERS_OF_2 = Array.from({ length: 31 }, (_, exponent) => 2 ** (exponent - 15));

/** Decode base64 of little-endian float16. */
function decodeFloat16(base64) {
  const bytes = atob(base64);
  const numbers = new Float32Array(bytes.length / 2);
  for (let i = 0; i < numbers.length; i++) {
    const bits = bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1);
    const exponent = (bits >> 10) & 31;
    const fraction = (bits & 1023) / 1024;
    const size = exponent ? POWERS_OF_2[exponent] * (1 + fraction) : 2 ** -14 * fraction;
    numbers[i] = bits >> 15 ? -size : size;
  }
  return numbers;
}

/** Return a row of a matrix. */
function row({ shape, data }, number) {
  return data.subarray(number * shape[1], (number + 1) * shape[1]);
}

/** Return the parts of a vector that are `width` long, such as its heads. */
function split(vector, width) {
  const number = vector.length / width;
  return Array.from({ length: number }, (_, n) => vector.subarray(n * width, (n + 1) * width));
}

/** Return one vector of several that have the same length. */
function concatenate(vectors) {
  const result = new Float32Array(vectors.length * vectors[0].length);
  vectors.forEach((vector, n) => result.set(vector, n * vector.length));
  return result;
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function add(a, b) {
  return a.map((number, i) => number + b[i]);
}

function multiply(a, b) {
  return a.map((number, i) => number * b[i]);
}

function scaled(vector, factor) {
  return vector.map((number) => factor * number);
}

/** Return the sum of vectors, each times its weight. */
function weightedSum(weights, vectors) {
  const sum = new Float32Array(vectors[0].length);
  vectors.forEach((vector, s) => {
    if (weights[s]) for (let i = 0; i < sum.length; i++) sum[i] += weights[s] * vector[i];
  });
  return sum;
}

/** Multiply a vector `[D]` by a kernel of D rows, and add a bias if there is one. */
function linear(vector, { kernel: { data }, bias }) {
  const size = data.length / vector.length;
  const result = bias ? bias.data.slice() : new Float32Array(size);
  const start = vector.length % 4;
  for (let i = 0; i < start; i++) {
    for (let j = 0; j < size; j++) result[j] += vector[i] * data[i * size + j];
  }
  for (let i = start; i < vector.length; i += 4) { // four rows at once take half the time
    const [a, b, c, d] = [vector[i], vector[i + 1], vector[i + 2], vector[i + 3]];
    const [p, q, r, s] = [i * size, (i + 1) * size, (i + 2) * size, (i + 3) * size];
    for (let j = 0; j < size; j++) {
      result[j] += a * data[p + j] + b * data[q + j] + c * data[r + j] + d * data[s + j];
    }
  }
  return result;
}

/** Layer norm, or root mean square norm if it has no bias; without a norm, the vector itself. */
function normalize(vector, norm) {
  if (!norm) return vector;
  const mean = norm.bias ? vector.reduce((sum, x) => sum + x, 0) / vector.length : 0;
  const variance = vector.reduce((sum, x) => sum + (x - mean) ** 2, 0) / vector.length;
  const factor = 1 / Math.sqrt(variance + norm.epsilon);
  return vector.map(
    (x, i) => (x - mean) * factor * norm.scale.data[i] + (norm.bias ? norm.bias.data[i] : 0),
  );
}

function softmax(scores) {
  const powers = new Float32Array(scores.length);
  const most = largestOf(scores);
  let sum = 0;
  for (let i = 0; i < scores.length; i++) sum += powers[i] = Math.exp(scores[i] - most);
  for (let i = 0; i < scores.length; i++) powers[i] /= sum;
  return powers;
}

function logSoftmax(scores) {
  const most = largestOf(scores);
  const sum = scores.reduce((total, score) => total + Math.exp(score - most), 0);
  return scores.map((score) => score - most - Math.log(sum));
}

function largestOf(numbers) {
  let most = -Infinity;
  for (let i = 0; i < numbers.length; i++) if (numbers[i] > most) most = numbers[i];
  return most;
}

/** Return bound · tanh(number / bound); without a bound, the number itself. */
function softCap(number, bound) {
  return bound === null ? number : bound * Math.tanh(number / bound);
}

/** The error function, to 1.5e-7 (Abramowitz and Stegun 1964, formula 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const terms = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429];
  const sum = terms.reduceRight((total, term) => t * (term + total), 0);
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0),
  gelu: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  gelu_exact: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
};

/** Entry 2i is sin(position / 10000^(2i/D)), and entry 2i + 1 is the cosine. */
function sinusoidal(position, width) {
  return Float32Array.from({ length: width }, (_, i) => {
    const angle = position * 10000 ** (-(i - (i % 2)) / width);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/** Rotate entries i and i + H/2 by position / base^(2i/H) radians. */
function rotate(vector, position, base) {
  const half = vector.length / 2;
  return vector.map((number, i) => {
    const angle = position * base ** (-(i % half) / half);
    const other = i < half ? -vector[i + half] : vector[i - half];
    return number * Math.cos(angle) + other * Math.sin(angle);
  });
}
