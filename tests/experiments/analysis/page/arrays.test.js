'use strict';

const assert = require('node:assert');
const test = require('node:test');
const { engine, assertClose } = require('./engine.js');

const encoded = (...bits) => Buffer.from(Uint16Array.from(bits).buffer).toString('base64');

test('float16 of every kind of number', () => {
  const found = engine.decodeFloat16(encoded(0x3c00, 0xc000, 0x7bff, 0x0001, 0x83ff, 0x0000));
  const subnormal = 2 ** -24;
  assertClose(found, [1, -2, 65504, subnormal, -1023 * subnormal, 0], 1e-12);
});

test('linear layer with and without a bias', () => {
  const kernel = { shape: [2, 3], data: Float32Array.of(1, 2, 3, 4, 5, 6) };
  assertClose(engine.linear(Float32Array.of(1, 2), { kernel, bias: null }), [9, 12, 15], 1e-9);
  const bias = { shape: [3], data: Float32Array.of(1, 0, -1) };
  assertClose(engine.linear(Float32Array.of(1, 2), { kernel, bias }), [10, 12, 14], 1e-9);
});

test('linear layer of every number of rows', () => {
  for (let rows = 1; rows < 11; rows++) {
    const data = Float32Array.from({ length: 2 * rows }, (_, i) => i);
    const found = engine.linear(new Float32Array(rows).fill(1), { kernel: { data }, bias: null });
    assertClose(found, [rows * (rows - 1), rows * rows], 1e-6);
  }
});

test('softmax of masked scores', () => {
  assertClose(engine.softmax([Math.log(3), -Infinity, 0]), [0.75, 0, 0.25], 1e-6);
  assertClose(engine.logSoftmax([1000, 1000]), [-Math.LN2, -Math.LN2], 1e-6);
});

test('error function', () => {
  const expected = [-0.8427007929, 0, 0.5204998778, 0.9999779095];
  assertClose([-1, 0, 0.5, 3].map(engine.erf), expected, 2e-7);
});

test('sinusoidal positions alternate sine and cosine', () => {
  const expected = [Math.sin(3), Math.cos(3), Math.sin(0.03), Math.cos(0.03)];
  assertClose(engine.sinusoidal(3, 4), expected, 1e-7);
});
