"""Multi30k, English to German, by Transformer-Tiny: image captions as subwords.

The sizes are those of Transformer-Tiny of Wu et al. 2021 (ACL, "Good for Misconceived Reasons").
Unlike theirs, the model is pre-norm with rotary positions and dropout 0.2; batches are small, the
schedule is a cosine, and checkpoints are not averaged. The files are those of Elliott et al. 2016,
lowercased and tokenized; `data.path` is their folder. Their terms of use allow research and
education.

command    python run.py --config=configs/multi30k.py --config.data.path=FOLDER
hardware   two CPU cores
time       41.1 min of training
score      test tokenized BLEU: 40.74 (for comparison: 41.02 (Wu et al. 2021: other subwords,
           post-norm, sinusoidal positions)); seed 0, commit 48d01d27
"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(form: str = "") -> ConfigDict:
    """The experiment, or its tiny form that ends in seconds."""
    config = defaults.new("translation", "parallel", steps=7_000)
    data, batch, model, train = config.data, config.batch, config.model, config.train

    reported = "41.02 (Wu et al. 2021: other subwords, post-norm, sinusoidal positions)"
    config.literature = ConfigDict({"test": {"tok_bleu": reported}})

    data.path = "data/multi30k"
    data.files.test = "test_2016"
    data.tokenized = True

    config.text.size = 9_700

    batch.tokens = 2_048  # about 128 pairs
    batch.bucket_lengths = (16, 20, 24, 32, 48)
    batch.packed = True
    batch.microbatches = 2

    model.width = 128
    model.positions = "rotary"
    model.max_length = 80
    model.encoder_layers = model.decoder_layers = 4
    model.tie = "all"
    model.dropout = 0.2
    model.remat = False

    train.label_smoothing = 0.1
    train.schedule = "cosine"
    train.learning_rate = 3e-3
    train.warmup_steps = 1_000
    train.weight_decay = 0.0
    train.evaluate_every = train.sample_every = 1_000
    train.checkpoint_every = 500

    config.decoding.num_beams = 5
    config.decoding.length_penalty = 1.0

    if defaults.is_tiny(form):
        model.max_length = 48
        defaults.make_tiny(config)
        data.path = str(defaults.SAMPLES / "captions")
        config.text.size = 400
        batch.tokens = 480
        config.decoding.num_beams = 2
    return config
