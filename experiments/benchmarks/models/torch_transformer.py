"""The model of `configs/multi30k.py` as a plain PyTorch loop around `nn.Transformer`."""

from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from experiments.data.rows import Batch
from experiments.data.vocabulary import PAD
from experiments.environment import num_cores


class TorchTransformer:
    """Trains by a batch at a time, on the CPU.

    Attributes:
        model: the module, of which `transformer` is an `nn.Transformer`.
        num_parameters: of the model.
    """

    def __init__(self, config: ConfigDict, vocab_size: int) -> None:
        """Makes the model and its optimizer.

        Args:
            config: of a translation: `model` and `train`, as `configs/multi30k.py` has them.
            vocab_size: V, of both languages.

        Raises:
            ImportError: torch is not installed.
        """
        import torch

        torch.set_num_threads(num_cores())
        torch.manual_seed(config.seed)
        train = config.train
        self._clip_norm = train.clip_norm
        self.model = _make_model(config.model, vocab_size)
        self._criterion = torch.nn.CrossEntropyLoss(
            ignore_index=PAD, label_smoothing=train.label_smoothing
        )
        self._optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=train.learning_rate,
            betas=(train.beta1, train.beta2),
            eps=train.epsilon,
        )
        rise = train.warmup_steps  # then down with 1/√step
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: min(step / rise, (rise / max(step, 1)) ** 0.5)
        )
        self.num_parameters = sum(weights.numel() for weights in self.model.parameters())

    def learn(self, batch: Batch) -> float:
        """One step; returns the mean loss of its tokens."""
        import torch

        self.model.train()
        source, inputs, labels = (
            torch.from_numpy(ids).long()
            for ids in (batch.source, batch.target_inputs, batch.target_labels)
        )
        loss = self._criterion(self.model(source, inputs).flatten(0, 1), labels.flatten())
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self._optimizer.step()
        self._schedule.step()
        return loss.item()

    def load(self, parameters: nnx.State) -> None:
        """Takes over the parameters of our model."""
        import torch

        weights = {
            name: torch.from_numpy(array.copy()) for name, array in torch_weights(parameters)
        }
        self.model.load_state_dict(weights)


def torch_weights(parameters: nnx.State) -> list[tuple[str, np.ndarray]]:
    """Return our parameters of an `EncoderDecoder` by the names of `nn.Transformer`."""
    found = [("tokens.weight", _array(parameters["target_embedding"]["tokens"]))]
    for side, attentions in (
        ("encoder", {"self_attention": "self_attn"}),
        ("decoder", {"self_attention": "self_attn", "cross_attention": "multihead_attn"}),
    ):
        for number, layer in enumerate(_layers(parameters[side]["layers"]["blocks"])):
            into = f"transformer.{side}.layers.{number}"
            for ours, name in attentions.items():
                sublayer = layer[ours]["sublayer"]
                projections = [_linear(sublayer[each]) for each in ("query", "key", "value")]
                kernels, biases = zip(*projections, strict=True)
                kernel, bias = _linear(sublayer["output"])
                found += [
                    (f"{into}.{name}.in_proj_weight", np.concatenate(kernels)),
                    (f"{into}.{name}.in_proj_bias", np.concatenate(biases)),
                    (f"{into}.{name}.out_proj.weight", kernel),
                    (f"{into}.{name}.out_proj.bias", bias),
                ]
            for name, ours in (("linear1", "widen"), ("linear2", "narrow")):
                kernel, bias = _linear(layer["feed_forward"]["sublayer"][ours])
                found += [(f"{into}.{name}.weight", kernel), (f"{into}.{name}.bias", bias)]
            for place, ours in enumerate((*attentions, "feed_forward"), start=1):
                norm = layer[ours]["norm"]
                found += [
                    (f"{into}.norm{place}.weight", norm["scale"]),
                    (f"{into}.norm{place}.bias", norm["bias"]),
                ]
    return found


def _layers(blocks: nnx.State) -> list[dict]:
    """Return the parameters of each layer of a stack of equal layers, stacked or not."""
    every = [jax.tree.map(np.asarray, nnx.to_pure_dict(blocks[index])) for index in blocks]
    if every[0]["feed_forward"]["norm"]["scale"].ndim == 1:
        return every
    (stacked,) = every
    number = len(stacked["feed_forward"]["norm"]["scale"])
    return [jax.tree.map(lambda leaf, at=at: leaf[at], stacked) for at in range(number)]


def _linear(layer: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel `[out, in]` and the bias `[out]` of a layer, heads side by side."""
    kernel, bias = layer["kernel"], layer["bias"]
    return kernel.reshape(-1, bias.size).T, bias.ravel()


def _array(parameter: nnx.Variable) -> np.ndarray:
    return np.asarray(parameter[...])


def _make_model(config: ConfigDict, vocab_size: int) -> Any:  # noqa: ANN401 - a torch module
    import torch
    from torch import nn

    width = config.width
    half = 10_000.0 ** -(torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(config.max_length), half)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocab_size, width)
            nn.init.normal_(self.tokens.weight, std=width**-0.5)
            self.transformer = nn.Transformer(
                width,
                config.num_heads,
                config.encoder_layers,
                config.decoder_layers,
                config.hidden,
                config.dropout,
                layer_norm_eps=1e-6,
                batch_first=True,
            )
            # Its layers end with a norm, and what they drop is what the recipe drops.
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
            for part in self.transformer.modules():
                if isinstance(part, nn.MultiheadAttention):
                    part.dropout = config.attention_dropout
                elif isinstance(part, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    part.dropout = nn.Identity()  # behind the ReLU
            self.dropout = nn.Dropout(config.dropout)
            places = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
            self.register_buffer("places", places, persistent=False)

        def embed(self, ids: torch.Tensor, start: int = 0) -> torch.Tensor:  # [B, T]
            places = self.places[start : start + ids.shape[1]]
            return self.dropout(self.tokens(ids) * width**0.5 + places)

        def forward(self, source: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
            padding = source == PAD
            features = self.transformer(
                self.embed(source),
                self.embed(inputs),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1]),
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,  # so no target sees the padding behind it
            )
            return features @ self.tokens.weight.T

    return Model()
