"""Text of docs/STEPS.md beside its tables. It contains no measured number."""

INTRODUCTION = """\
# Profile of a step

Shares of the time of all cores, read from `jax.profiler.trace`: each operation of a compiled
program belongs to the innermost source file of this repository that it was traced from, gradients
to the file of what they differentiate, and linear layers to the file that calls them. Those of
`embeddings.py` include the logits, the product with the tied table. Shares vary less from run to
run than seconds do.
[MODELS.md](MODELS.md) compares whole models with PyTorch and CTranslate2. This command writes the
page, from the figures in `STEPS.json` beside it:
"""

TRAINING = """\
Changes that made a step faster:

- **The loss writes nothing as large as the logits.** On a CPU, XLA computes sums by library calls,
  and nothing is fused into them: a product of the logits with a distribution over labels was
  written to memory, and so was the one-hot label for the accuracy. Now the logit of the label is
  gathered, and only its derivative is a comparison.
- **Random bits are a hash.** Threefry runs five loops over integer arrays for each dropout. The
  hash that selects dropped attention weights takes ten operations, which are fused into the sums
  that read it.
- **Few layers are unrolled.** A scan stores what the backward pass needs in arrays of all layers,
  which are filled with zeros first, and reads it from there. Therefore up to four layers are
  unrolled, which compiles as fast, unless they are rematerialised (`remat`), which stores little.
  Many layers take longer unrolled than scanned.
- **Gradients of kernels have one axis of rows** (`attention/modules/layers.py`). If rows are two
  axes, sentences and positions, XLA writes the derivative of the output again with its axes
  exchanged, in a strided loop.
- **Memory pages are large.** A step allocates and frees much memory, in page faults of 4 KiB. With
  `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, glibc asks for pages of 2 MiB; `make train` sets it.

Changes without effect: one product for queries, keys and values (slicing costs what the product
saves); barriers after linear layers; storing only products for the derivative; other tile sizes of
the loss; other vector widths, fusions and schedules of XLA; checking for NaN row by row. bfloat16
is slower on cores without instructions for it. On cores with them (AMX) it is not faster either:
XLA uses them for a product of bfloat16 that is accumulated in float32 and not transposed, but the
gradient of a matrix sums over rows, which is a transposed product, and a product that is rounded to
bfloat16 is computed in float32 first."""

BEAM_SEARCH = """\
Changes that made beam search faster:

- **Slots are refilled.** Rows waited for the longest of their batch, and every batch allocated
  empty caches. Now the slot of a finished row is refilled at once
  (`attention/decoding/loop.py`). With fewer rows at once, the data of a step also stays in
  the cache of the processor.
- **Caches are as long as the answers.** The cost of a step grows with the slots of the caches of
  keys and values. Sentences are translated in groups of similar length, with slots for half as many
  tokens more; a row that needs more is decoded again.
- **What is written to a cache is checked for NaN once**, and its flags are stored. Every step
  checked all keys and values.
- **Caches are reordered in place**, some slots at a time, up to the filled length. They were
  gathered into new arrays and written back at full length.
- **Logits are read twice in their original layout.** They were transposed, normalised and scored as
  a whole. Now the best extensions of each hypothesis are those with its largest logits, and of a
  large vocabulary only the blocks with the largest maxima are sorted.

Bounds: XLA computes products more slowly than the library that PyTorch and CTranslate2 call, and
its other libraries (`xla_cpu_use_onednn`, `xla_cpu_experimental_ynn_fusion_type`) gain nothing
here. A step runs hundreds of small programs for reordering, norms, softmax and masks. Between two
products with the vocabulary, a step evicts its table from the cache of the processor. A beam
narrows with each hypothesis that ends: slots of finished sentences are refilled, those of
hypotheses are not.
"""
