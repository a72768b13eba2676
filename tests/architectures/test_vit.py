"""A Vision Transformer with a class token (Dosovitskiy et al. 2021)."""

import jax

from attention import modules
from tests.architectures.helpers import bright_quadrants, classification_loss, train

WIDTH, NUM_CLASSES = 16, 4


def make_layer(index, rngs):
    def residual(sublayer):
        return modules.Residual(modules.layer_norm(WIDTH, rngs=rngs), sublayer, dropout=0.1)

    return modules.Block(
        self_attention=residual(modules.SelfAttention(WIDTH, num_heads=4, rngs=rngs)),
        feed_forward=residual(modules.FeedForward(WIDTH, 2 * WIDTH, activation="gelu", rngs=rngs)),
    )


def make_model(rngs):
    positions = modules.LearnedPositions(16, WIDTH, scale=1.0, rngs=rngs)
    patches = {"image_shape": (8, 8, 1), "patch_size": 2, "positions": positions}
    layers = modules.Layers(make_layer, 2, rngs=rngs)
    return modules.Classifier(
        modules.PatchEmbedding(WIDTH, **patches, rngs=rngs),
        modules.Encoder(layers, norm=modules.layer_norm(WIDTH, rngs=rngs)),
        modules.ClassToken(WIDTH, rngs=rngs),
        modules.linear({"embed": WIDTH}, {"classes": NUM_CLASSES}, rngs=rngs),
    )


def test_learns_and_returns_attention():
    images, labels = bright_quadrants()
    model = train(make_model, classification_loss, images, labels)
    run = jax.jit(lambda model: model(images, returning=("weights", "hidden_states")))
    output = run(model)
    assert (output.logits.argmax(axis=-1) == labels).all()
    # The class token attends to itself and to 16 patches.
    assert output.attention[-1]["self_attention"]["weights"][:, :, 0].shape == (32, 4, 17)
    assert [state.shape for state in output.hidden_states] == 3 * [(32, 17, WIDTH)]
