"""Every source of sentence pairs by its name, `config.data.name`."""

from experiments.data.sequences import copy, denoising, reverse, scan, summary, toy

SOURCES = {
    "toy": toy.SOURCE,
    "reverse": reverse.SOURCE,
    "copy": copy.SOURCE,
    "scan": scan.SOURCE,
    "denoising": denoising.SOURCE,
    "summary": summary.SOURCE,
}
