"""Train a model or continue its run, then measure it."""

from pathlib import Path

from experiments.analysis.curves import draw_learning_curve
from experiments.config import Config
from experiments.evaluate import measure
from experiments.metrics import import_wandb
from experiments.processes import check_same
from experiments.registry import TASKS
from experiments.results import results_so_far
from experiments.training.session import fit_in
from experiments.warm_start import parameters_to_start_from
from experiments.workdir import Workdir


def train(
    config: Config,
    workdir: Workdir,
    cache: Path,
    *,
    profile: bool = False,
    wandb: str | None = None,
) -> None:
    """Train a model, or continue from the newest checkpoint of its workdir, and measure it.

    Args:
        config: of the run.
        workdir: where all that the run makes goes.
        cache: where generated data is kept.
        profile: whether some steps are traced into the folder `profile` of the workdir.
        wandb: project of Weights & Biases that takes the metrics too.

    Raises:
        UsageError: before anything is written: data, a model or a workdir that does not fit.
    """
    if wandb:
        import_wandb()
    print(f"reading the {config.data.name} data")
    task = TASKS[config.task].prepare(config, cache, workdir)
    for split in task.known_splits:
        task.ids(split)  # raises for an example that does not fit
        task.batches(split)  # or whose batches have no room for it
    batches = task.training_batches()
    task.learner.trace(task.learner.batch_reader(batches)(0)[0])
    texts = {name: task.splits[name].fingerprint for name in task.known_splits}
    check_same(
        f"{texts} {task.config.train.steps}",
        f"reads other {config.data.name} data than process 0: give all the same files",
    )
    parameters = {} if workdir.newest_step() else parameters_to_start_from(task, cache)
    workdir.claim(task.config)
    workdir.keep_texts(texts)
    task.tokenizers.keep(workdir.path)
    before = results_so_far(workdir)
    sizes = " and ".join(f"{len(each):,}" for each in task.tokenizers if each is not None)
    print(
        f"{batches.epoch.examples:,} examples, {sizes} tokens, "
        f"{task.learner.num_parameters:,} parameters\n"
        f"{batches.padding:.1%} of the positions in training batches are padding"
    )
    trained = fit_in(workdir, task, batches, parameters, profile=profile, wandb=wandb)
    draw_learning_curve(workdir.path, workdir.learning_curve)
    measure(task, workdir, trained, {name: name for name in task.test_splits}, before)
