"""What other libraries and papers call fedpriv's settings, and what to write instead.

One table for Python, configurations and the command line: an unknown name is looked up in it before the nearest known
name is suggested.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

Language = Literal["python", "yaml"]
V = TypeVar("V")


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error message: `; did you mean 'x'?` if a name is close, else every name there is."""
    known = sorted(names)
    close = difflib.get_close_matches(name[:100], known, n=3)  # a longer one is like no other
    if close:
        return "; did you mean " + " or ".join(repr(match) for match in close) + "?"
    if known:
        return "; choose one of " + ", ".join(known)
    return ""


@dataclass(frozen=True)
class Conversion:
    """A parameter of some option objects whose value follows from the one that was given.

    In the texts `{value}` stands for the value that was given.

    Attributes:
        name: The parameter's name.
        argument: How Python passes it.
        yaml: How a configuration writes it.
        note: What else to know, as a sentence fragment.
    """

    name: str
    argument: str
    yaml: str
    note: str

    def text(self, value: str, language: Language) -> str:
        """Returns what to write for a value."""
        if language == "python":
            text = self.argument
        else:
            text = self.yaml
        return f"{text.replace('{value}', value)} ({self.note})"


@dataclass(frozen=True)
class Term:
    """One setting of fedpriv, under the names that others give it.

    In the texts `{value}` stands for the value that was given, and `{argument}` for the argument.

    Attributes:
        name: The parameter's name.
        words: Other names of it, separated by spaces.
        argument: How Python passes it to what has this parameter.
        call: How Python passes it to `train`, where that has no such parameter.
        yaml: How a configuration or the command line writes it.
        also: Parameters that mean it in some option objects, where they take the value as it is.
        note: What else to know, as a sentence fragment.
        conversions: Parameters that follow from it in some option objects.
    """

    name: str
    words: str
    argument: str
    call: str
    yaml: str
    also: tuple[str, ...] = ()
    note: str = ""
    conversions: tuple[Conversion, ...] = ()

    @property
    def section(self) -> str:
        """The section of a configuration that has it, e.g. `data.partition`; empty for the run itself."""
        if self.yaml.startswith("leave it out"):
            return ""
        path, _, value = self.yaml.partition(": ")
        if value.startswith(("{name:", "{kind:")):  # the section itself
            return path
        return path.rpartition(".")[0]

    def is_called(self, word: str, place: str = "") -> bool:
        """Whether somebody calls it by this word.

        Args:
            word: The word.
            place: The section or function in which the word is written, e.g. `data.partition`; empty for the run
                itself. A word of many meanings has this one there and in the setting's own section alone.
        """
        if word != self.name and word not in self.words.split():
            return False
        if word not in MANY_MEANINGS or place == "":
            return True
        return is_inside(place, self.section)


_MANY_MEANINGS = (
    "alpha b1 b2 beta beta1 beta2 betas c clipping counts decay delta double e eps epsilon eta frac gamma graph k l1 "
    "l2 lam lambda_ lengths links log m method momentum mu names noise opt optim optimizer orders path penalty private "
    "q reg regularization sample_ratio scheduler sigma sizes steps t tau tol topology users warmup weight_decay z"
)
MANY_MEANINGS = frozenset(_MANY_MEANINGS.split())
"""Words with a meaning of their own in models, losses, data and graphs: the `alpha` of a Dirichlet distribution, the
`momentum` of a BatchNorm, the `delta` of a Huber loss."""

_SECTIONS = {"partition": "data.partition", "regularizer": "strategy.regularizer", "stop": "log.stop"}
"""The section of a configuration that a function of Python stands for, where it has another name in its errors."""


def is_inside(place: str, section: str) -> bool:
    """Whether a section or function is a given section, or a part of it.

    Example:
        >>> is_inside("strategy.optimizer", "strategy"), is_inside("data.partition", "strategy")
        (True, False)
    """
    return f"{_SECTIONS.get(place, place)}.".startswith(f"{section}.")


_PRIVACY = "privacy=fedpriv.Privacy({argument})"
_MORE_PRIVACY = "privacy=fedpriv.Privacy(..., {argument})"
_COMPUTE = "compute=fedpriv.Compute({argument})"
_STRATEGY = "strategy=fedpriv.fedavg({argument})"
_OPTIMIZER = "strategy=fedpriv.fedavg(learning_rate=0.1, {argument})"
_TRAIN = "fedpriv.train(..., {argument})"
_CLIENTS = "clients=fedpriv.make_clients(model, loss, datasets)"


def _option(owner: str, section: str, name: str, words: str = "", *also: str) -> Term:
    """A setting that takes the value as it is, in Python and in YAML."""
    path = f"{section}.{name}" if section else name
    return Term(name, words, f"{name}={{value}}", owner, f"{path}: {{value}}", also)


_BATCHES = "each example joins a batch with this probability, in secret, which makes epsilon small"
_EPOCHS = "each example is in one batch of an epoch, drawn in secret, and one round is one batch"
_EXAMPLES = "n is the number of examples of a client"
_BATCH_SIZE = f"{_EXAMPLES}: {_BATCHES}"
_BATCH_SIZE_AS = (
    Conversion(
        "batches",
        "batches=round(n / {value})",
        "batches: K, K being the number n over {value}",
        f"{_EXAMPLES}: {_EPOCHS}",
    ),
    Conversion(
        "blocks",
        "blocks=round(n / {value})",
        "blocks: K, K being the number n over {value}",
        f"{_EXAMPLES}: each of them is in one block, which anybody may know, and one round is one block",
    ),
    Conversion("rate", "rate={value} / n", "rate: R, R being {value} over the number n", _BATCH_SIZE),
)
_OPTIMIZERS = "there are Sgd, Momentum, Adam and AdamW; fedavg, fedprox, fedopt and decentralized_sgd take one"
_ONE_PASS = (
    "one round is one pass over the data where a batch has all examples, which is the default; of Poisson batches "
    "1 / rate rounds are one pass"
)

TERMS: tuple[Term, ...] = (
    # how private
    _option(_PRIVACY, "privacy", "epsilon", "eps target_epsilon target_eps max_epsilon dp_epsilon privacy_budget"),
    _option(_MORE_PRIVACY, "privacy", "delta", "target_delta dp_delta"),
    _option(
        _PRIVACY,
        "privacy",
        "noise_multiplier",
        "sigma noise_scale noise_std noise_stddev noise_level noise_mult dp_noise z",
    ),
    Term(
        "clip",
        "max_grad_norm clip_norm max_norm grad_clip grad_norm gradient_clip gradient_clip_val clipping clipping_norm "
        "clipping_threshold clipping_bound clip_bound clip_value l2_norm_clip l2_clip max_grad clip_threshold c",
        "clip=fedpriv.Clip({value})",
        _MORE_PRIVACY,
        "privacy.clip: {bound: {value}}",
        ("bound", "max_grad_norm"),
    ),
    Term(
        "sampling",
        "sample_rate sampling_rate subsampling_rate sampling_probability sampling_prob batch_rate q",
        "sampling=fedpriv.Poisson(rate={value})",
        _MORE_PRIVACY,
        "privacy.sampling: {poisson: {rate: {value}}}",
        ("rate",),
    ),
    Term(
        "sampling",
        "batch_size batchsize lot_size minibatch_size mini_batch_size expected_batch_size train_batch_size bs "
        "local_batch_size logical_batch_size",
        "sampling=fedpriv.Poisson(rate={value} / n)",
        _MORE_PRIVACY,
        "privacy.sampling: {poisson: {rate: R}}, R being {value} over the number n",
        ("size",),
        _BATCH_SIZE,
        _BATCH_SIZE_AS,
    ),
    Term(
        "sampling",
        "batches n_batches num_batches batches_per_epoch steps_per_epoch",
        "sampling=fedpriv.Allocation(batches={value})",
        _MORE_PRIVACY,
        "privacy.sampling: {allocation: {batches: {value}}}",
        ("batches", "blocks"),
        _EPOCHS,
    ),
    Term(
        "sampling",
        "shuffle shuffled random_allocation allocation balls_and_bins balls_in_bins",
        "sampling=fedpriv.Allocation(batches=100)",
        _MORE_PRIVACY,
        "privacy.sampling: {allocation: {batches: 100}}",
        note=_EPOCHS,
    ),
    Term(
        "sampling",
        "poisson_sampling poisson drop_last sampler batch_sampler subsampling amplification",
        "sampling=fedpriv.Poisson(rate=0.01)",
        _MORE_PRIVACY,
        "privacy.sampling: {poisson: {rate: 0.01}}",
        note="fedpriv draws the batches itself, since epsilon depends on how they are drawn",
    ),
    Term(
        "trust",
        "secure_aggregation secure_agg secagg secure_sum threat_model",
        "trust=fedpriv.SecureAggregation(min_honest=5)",
        _MORE_PRIVACY,
        "privacy.trust: {secure_aggregation: {min_honest: 5}}",
    ),
    Term(
        "trust",
        "trusted_server central central_dp central_privacy cdp dp_type dp_model",
        "trust=fedpriv.Central()",
        _MORE_PRIVACY,
        "privacy.trust: central",
    ),
    Term("trust", "local_dp local_privacy ldp", "trust=fedpriv.Local()", _MORE_PRIVACY, "privacy.trust: local"),
    Term(
        "unit",
        "privacy_unit privacy_level user_level client_level granularity protect",
        'unit="client"',
        _MORE_PRIVACY,
        "privacy.unit: client",
        note='"sample" protects one example, "client" all that a client holds',
    ),
    Term(
        "relation",
        "adjacency neighbouring neighboring neighbour_relation neighbor_relation neighboring_relation",
        'relation="replace_one"',
        _MORE_PRIVACY,
        "privacy.relation: replace_one",
        note="or add_remove",
    ),
    Term(
        "mechanism",
        "noise_type noise_distribution noise_kind privacy_mechanism",
        "mechanism=fedpriv.Gaussian()",
        _MORE_PRIVACY,
        "privacy.mechanism: gaussian",
        note="or Laplace",
    ),
    Term(
        "at",
        "noise_at perturb",
        'at="gradient"',
        _MORE_PRIVACY,
        "privacy.at: gradient",
        note="or message, or none for no noise",
    ),
    Term(
        "at",
        "private is_private dp use_dp enable_dp disable_dp no_privacy",
        'at="none"',
        _PRIVACY,
        "privacy.at: none",
        note="for a run without privacy; leave it out for a private one",
    ),
    Term(
        "noise",
        "correlated_noise matrix_mechanism ftrl dp_ftrl",
        "noise=fedpriv.Banded(band=8)",
        _MORE_PRIVACY,
        "privacy.noise: {time: {banded: {band: 8}}}",
    ),
    Term(
        "schedule",
        "budget_schedule noise_schedule",
        "schedule=fedpriv.Geometric(ratio=1.01)",
        _MORE_PRIVACY,
        "privacy.schedule: {geometric: {ratio: 1.01}}",
    ),
    _option(_MORE_PRIVACY, "privacy", "budget", "lifetime_budget budget_file"),
    Term(
        "published",
        "paper_noise epsilon_bar",
        "published=fedpriv.Published(epsilon_bar=1.0)",
        _PRIVACY,
        "leave it out; a paper's own noise, not private, is strategy.variant: published",
    ),
    Term(
        "statistics",
        "constraint_bound loss_bound",
        "statistics=fedpriv.Statistics(bound=4.0)",
        _MORE_PRIVACY,
        "privacy.statistics: {bound: 4.0}",
    ),
    _option(_MORE_PRIVACY, "privacy", "durable"),
    Term(
        "accountant",
        "accounting accountant_type rdp alphas orders rdp_orders prv secure_mode secure_rng",
        "leave it out",
        "leave it out",
        "leave it out",
        note="epsilon is always composed tightly, and noise is always cryptographic",
    ),
    # how long, and with whom
    Term(
        "rounds",
        "epochs n_epochs num_epochs max_epochs epoch global_epochs",
        "rounds={value}",
        _TRAIN,
        "rounds: {value}",
        ("epochs",),
        note=_ONE_PASS,
    ),
    Term(
        "rounds",
        "n_rounds num_rounds max_rounds total_rounds num_server_rounds serverconfig central_num_iterations "
        "communication_rounds global_rounds comm_rounds t steps "
        "n_steps max_steps num_steps total_steps iterations n_iter n_iters num_iterations max_iter max_iterations",
        "rounds={value}",
        _TRAIN,
        "rounds: {value}",
    ),
    Term(
        "local_steps",
        "epochs n_epochs num_epochs local_epochs num_local_epochs e n_local_steps num_local_steps local_iterations "
        "local_iters local_num_steps local_num_epochs inner_steps local_rounds local_updates steps tau",
        "local_steps={value}",
        _OPTIMIZER,
        "strategy.local_steps: {value}",
        note="each is one gradient step on a batch, and with noise on gradients each costs privacy budget",
    ),
    Term(
        "n_clients",
        "num_clients nr_clients n_users num_users n_nodes num_nodes n_workers num_agents n_agents n_parties "
        "num_parties num_supernodes world_size clients client_fn client_app population users k",
        "n_clients={value}",
        _CLIENTS,
        "data.partition.n_clients: {value}",
        note="there are as many clients as data sets",
    ),
    Term(
        "cohort",
        "clients_per_round num_sampled_clients noise_cohort_size max_cohort_size "
        "num_clients_per_round n_clients_per_round cohort_size n_sampled "
        "users_per_round client_num_per_round num_fit_clients m",
        "cohort=fedpriv.FixedCohort({value})",
        "network=fedpriv.Star(n_clients, {argument})",
        "network.cohort: {fixed: {value}}",
        ("size",),
    ),
    Term(
        "min_fit_clients",
        "min_train_nodes min_available_clients min_available_nodes min_evaluate_clients",
        "leave it out",
        "leave it out",
        "leave it out",
        note="all clients are simulated, so none is waited for; a cohort of m clients a round is FixedCohort(m)",
    ),
    Term(
        "cohort",
        "sample_ratio fraction_fit fraction_train client_fraction participation participation_rate client_rate "
        "client_sampling_rate "
        "client_sample_rate fraction_clients frac active_fraction join_ratio",
        "cohort=fedpriv.PoissonCohort({value})",
        "network=fedpriv.Star(n_clients, {argument})",
        "network.cohort: {poisson: {value}}",
        ("rate", "cohort_rate"),
        "a secret cohort, which costs less epsilon, is the cohort_rate of central trust",
    ),
    Term(
        "network",
        "topology graph server links mixing_matrix communication star",
        "network=fedpriv.Graph(networkx.cycle_graph(8))",
        _TRAIN,
        "network.topology: ring",
        note="a server and all clients is the default",
    ),
    Term(
        "model",
        "net network_module module nn backbone model_fn initial_parameters initial_arrays hidden_layer_sizes",
        "model={value}",
        _CLIENTS,
        "model: {name: mnist_cnn}",
        note="each client has a model of its own, made from yours",
    ),
    Term(
        "loss",
        "criterion loss_fn loss_func loss_function objective_fn",
        "loss={value}",
        _CLIENTS,
        "loss: cross_entropy",
        note="each client has the loss",
    ),
    Term(
        "datasets",
        "data dataset data_sets training_dataset train_data train_dataset train_datasets train_set trainset "
        "training_data train "
        "client_data x y data_loaders loaders dataloaders train_loaders loader train_loader dataloader data_loader "
        "trainloader train_dataloader",
        "datasets=[dataset, ...]",
        _CLIENTS,
        "data: {name: mnist, partition: {kind: iid, n_clients: 10}}",
        note="one data set of (input, target) pairs for each client; of a DataLoader its .dataset",
    ),
    Term(
        "loader",
        "data dataset train_data train_dataset train_set trainset train_loader dataloader data_loader trainloader "
        "train_dataloader datasets",
        "loader=torch.utils.data.DataLoader(dataset)",
        _CLIENTS,
        "data: {name: mnist, partition: {kind: iid, n_clients: 10}}",
    ),
    Term("sizes", "lengths n_examples counts", "sizes={value}", _CLIENTS, "data.partition: {kind: iid, n_clients: 10}"),
    Term(
        "problem",
        "constraints constraint fairness",
        "problem=fedpriv.Problem(constraints=(fedpriv.LossAtMost(0.5),))",
        "clients=fedpriv.make_clients(model, loss, datasets, {argument})",
        "problem.constraints: [{name: loss_at_most, bound: 0.5}]",
    ),
    Term(
        "augmentation",
        "augment augmentations augmentation_multiplicity",
        "augmentation=fedpriv.Augmentation([fedpriv.Flip()])",
        "clients=fedpriv.make_clients(model, loss, datasets, {argument})",
        "data.augment: [flip]",
    ),
    # how it learns
    _option(
        _STRATEGY,
        "strategy",
        "learning_rate",
        "lr step_size stepsize eta alpha client_lr local_lr base_lr max_lr init_lr initial_lr client_learning_rate "
        "gamma lr_init local_learning_rate eta_l learning_rate_init",
        "step_size",
        "eta",
        "peak",
        "start",
        "scale",
    ),
    _option(
        _OPTIMIZER,
        "strategy",
        "server_learning_rate",
        "server_lr lr_server central_lr central_learning_rate global_lr eta_g server_step_size "
        "global_learning_rate slr",
    ),
    Term(
        "learning_rate",
        "scheduler lr_scheduler lr_schedule learning_rate_schedule learning_rate_scheduler warmup warmup_steps "
        "lr_decay decay",
        "learning_rate=fedpriv.Cosine(0.1, rounds=100)",
        _STRATEGY,
        "strategy.learning_rate: {cosine: {peak: 0.1, rounds: 100}}",
        ("warmup",),
        "or a function of your own of the round 1, 2, ...",
    ),
    Term(
        "optimizer",
        "opt optim torch_optimizer optimizer_fn optimizer_class optimiser base_optimizer client_optimizer",
        "optimizer=fedpriv.Adam()",
        _OPTIMIZER,
        "strategy.optimizer: adam",
        note=_OPTIMIZERS,
    ),
    Term(
        "strategy",
        "algorithm algo aggregator aggregation aggregation_fn method fl_algorithm",
        "strategy=fedpriv.fedavg(learning_rate=0.1)",
        _TRAIN,
        "strategy: {name: fedavg, learning_rate: 0.1}",
    ),
    Term(
        "optimizer",
        "momentum client_momentum nesterov",
        "optimizer=fedpriv.Momentum(0.9)",
        _OPTIMIZER,
        "strategy.optimizer: {momentum: {beta: 0.9}}",
        note=_OPTIMIZERS,
    ),
    Term(
        "momentum",
        "client_momentum beta",
        "momentum={value}",
        "strategy=fedpriv.gradient_descent(learning_rate=0.1, {argument})",
        "strategy.momentum: {value}",
        ("beta", "beta1", "server_momentum"),
    ),
    Term(
        "server_momentum",
        "global_momentum",
        "server_momentum={value}",
        _OPTIMIZER,
        "strategy.server_momentum: {value}",
    ),
    Term(
        "beta1",
        "betas beta_1 b1",
        "beta1=0.9, beta2=0.999",
        "strategy=fedpriv.fedavg(learning_rate=0.1, optimizer=fedpriv.Adam({argument}))",
        "strategy.optimizer: {adam: {beta1: 0.9, beta2: 0.999}}",
    ),
    Term(
        "beta2",
        "beta_2 b2",
        "beta2={value}",
        "strategy=fedpriv.fedavg(learning_rate=0.1, optimizer=fedpriv.Adam({argument}))",
        "strategy.optimizer: {adam: {beta2: {value}}}",
    ),
    Term(
        "eps",
        "adam_eps epsilon_adam",
        "eps={value}",
        "strategy=fedpriv.fedavg(learning_rate=0.1, optimizer=fedpriv.Adam({argument}))",
        "strategy.optimizer: {adam: {eps: {value}}}",
    ),
    Term(
        "weight_decay",
        "wd l2_reg l2_penalty",
        "weight_decay={value}",
        "strategy=fedpriv.fedavg(learning_rate=0.1, optimizer=fedpriv.AdamW({argument}))",
        "strategy.optimizer: {adamw: {weight_decay: {value}}}",
    ),
    Term(
        "regularizer",
        "weight_decay wd l2 l1 l2_reg l2_penalty reg penalty lam lambda_ regularization regularisation regulariser",
        "regularizer=fedpriv.strategies.proximal.L2({value})",
        "strategy=fedpriv.gradient_descent(learning_rate=0.1, {argument})",
        "strategy.regularizer: {l2: {lam: {value}}}",
        ("lam",),
    ),
    Term(
        "optimizer",
        "weight_decay wd l2_reg l2_penalty",
        "optimizer=fedpriv.AdamW(weight_decay={value})",
        _OPTIMIZER,
        "strategy.optimizer: {adamw: {weight_decay: {value}}}",
        note=_OPTIMIZERS,
    ),
    Term(
        "weighting",
        "weighted_by weight_by client_weights",
        'weighting="clients"',
        _OPTIMIZER,
        "strategy.weighting: clients",
        note='or "examples", the default',
    ),
    Term(
        "class_weight",
        "class_weights pos_weight sample_weight",
        "loss=torch.nn.CrossEntropyLoss(weight={value})",
        _CLIENTS,
        "leave it out",
        note="weights of classes belong to the loss, and must not be counted from private data",
    ),
    Term(
        "proximal",
        "mu proximal_mu prox_mu mu_prox prox proximal_term",
        "proximal={value}",
        "strategy=fedpriv.fedprox(learning_rate=0.1, {argument})",
        "strategy: {name: fedprox, learning_rate: 0.1, proximal: {value}}",
    ),
    Term(
        "average",
        "averaging ema ema_decay polyak polyak_averaging swa model_average iterate_averaging",
        "average=fedpriv.Ema(0.99)",
        _OPTIMIZER,
        "strategy.average: {decay: 0.99}",
        ("decay",),
    ),
    Term(
        "outages",
        "",
        "leave it out",
        "leave it out",
        "leave it out",
        note="behind a server fedpriv prices everyone, or a drawn cohort; for a client that joins late train in two "
        "parts (Special cases in the docs); on a graph: fedpriv.Graph(..., outages=[fedpriv.Outage(4, 0, 20)])",
    ),
    # where it computes
    Term(
        "client_resources",
        "ray_init_args backend_config server_app server_address",
        "leave it out",
        "leave it out",
        "leave it out",
        note="one process simulates all clients; organisations that really train together have fedpriv.sites",
    ),
    Term(
        "device",
        "gpu cuda use_cuda use_gpu accelerator gpus devices map_location",
        'device="cuda"',
        _COMPUTE,
        "compute.device: cuda",
        note="the default takes a GPU if there is one",
    ),
    _option(
        _COMPUTE,
        "compute",
        "chunk",
        "max_physical_batch_size physical_batch_size microbatch_size micro_batch_size microbatches chunk_size "
        "num_microbatches "
        "virtual_batch_size max_batch_size batch_memory_manager",
    ),
    _option(_COMPUTE, "compute", "threads", "num_threads n_threads n_jobs cpus num_cpus"),
    Term(
        "workers",
        "num_workers",
        "workers={value}",
        "clients=fedpriv.lazy_clients(model, loss, load, sizes, {argument})",
        "leave it out",
        note="of a client's own DataLoader num_workers is used",
    ),
    Term(
        "precision",
        "amp fp16 bf16 bfloat16 mixed_precision half autocast use_amp",
        'precision="bfloat16"',
        _COMPUTE,
        "compute.precision: bfloat16",
    ),
    Term(
        "backend",
        "grad_sample_mode per_sample_gradients ghost ghost_clipping vmap",
        'backend="ghost"',
        _COMPUTE,
        "compute.backend: ghost",
        note="the default chooses the fastest that is right",
    ),
    _option(_COMPUTE, "compute", "dtype", "float64 double torch_dtype"),
    Term(
        "engine",
        "distributed ddp processes n_processes num_processes strategy_ddp",
        'engine="processes"',
        _COMPUTE,
        "compute.engine: processes",
    ),
    _option(_COMPUTE, "compute", "timeout"),
    _option(_COMPUTE, "compute", "pace"),
    _option(_COMPUTE, "compute", "pad_batches"),
    Term("state", "client_state offload", 'state="disk"', _COMPUTE, "compute.state: disk"),
    # what is measured and written
    Term(
        "sinks",
        "tensorboard tb log logger loggers logging callback callbacks writer summary_writer sink",
        'sinks=[fedpriv.sinks.TensorBoard("runs/a")]',
        _TRAIN,
        "log.tensorboard: true",
        note="a sink is any object with write(report) and close()",
    ),
    Term(
        "sinks",
        "wandb wandb_project weights_and_biases",
        'sinks=[fedpriv.sinks.WandB("project")]',
        _TRAIN,
        "log.tensorboard: true",
        note="after the run: fedpriv track RUN --wandb PROJECT",
    ),
    Term(
        "sinks",
        "mlflow mlflow_tracking_uri experiment_name",
        'sinks=[fedpriv.sinks.MLflow("experiment")]',
        _TRAIN,
        "log.tensorboard: true",
        note="after the run: fedpriv track RUN --mlflow EXPERIMENT",
    ),
    Term(
        "sinks",
        "log_dir logdir tensorboard_dir tb_dir logging_dir",
        'sinks=[fedpriv.sinks.TensorBoard("runs/a")]',
        _TRAIN,
        "log.tensorboard: true",
        ("folder",),
    ),
    Term(
        "folder",
        "out out_dir output output_dir outdir save_dir save_path save_to checkpoint_dir checkpoint_path ckpt_dir "
        "workdir work_dir root_dir default_root_dir run_dir run_folder path dir directory",
        'folder="runs/a"',
        _TRAIN,
        "leave it out, and give --out runs/a on the command line",
        ("path",),
    ),
    Term(
        "progress",
        "verbose progress_bar pbar tqdm show_progress enable_progress_bar quiet silent",
        "progress=True",
        _TRAIN,
        "leave it out; the command line shows progress",
    ),
    Term(
        "test",
        "test_data test_dataset test_datasets test_set testset test_loader testloader test_dataloader val validation "
        "val_data val_set valset val_dataset val_loader valid_data validation_data validation_set eval_data eval_set "
        "eval_dataset evaluation_data holdout",
        "test=dataset",
        _TRAIN,
        "log.test: true",
        note="a public data set of (input, target) pairs; of a DataLoader its .dataset",
    ),
    Term(
        "stop",
        "early_stopping early_stop patience n_iter_no_change tol early_stopping_patience early_stopping_rounds "
        "min_delta",
        'stop=fedpriv.Stop("accuracy", patience=5)',
        _TRAIN,
        "log.stop: {metric: accuracy, patience: 5}",
        ("least",),
        "it saves time, no epsilon",
    ),
    Term(
        "keep",
        "save_best_only restore_best_weights save_best_model load_best_model_at_end save_best",
        'keep="best"',
        _TRAIN,
        "log.keep: best",
        note="chosen on public test data: it costs no epsilon, but the metric that chose is optimistic",
    ),
    _option(
        _TRAIN,
        "log",
        "evaluate_every",
        "eval_every evaluation_frequency eval_interval eval_freq eval_frequency eval_steps validate_every "
        "test_every log_every "
        "log_interval logging_steps val_check_interval",
    ),
    _option(
        _TRAIN,
        "log",
        "checkpoint_every",
        "save_every save_steps save_interval checkpoint_interval checkpoint_freq ckpt_every",
    ),
    Term(
        "metrics",
        "metric_fn metric_fns scorer scorers scoring score_fn compute_metrics eval_fn evaluate_fn torchmetrics",
        'metrics={"f1": f1}',
        _TRAIN,
        "log.metrics: {f1: 'package.module:f1'}",
        ("metric",),
        "functions of (outputs, targets) by name",
    ),
    Term(
        "resume",
        "resume_from resume_from_checkpoint resume_training load_from ckpt_path restart from_checkpoint",
        'folder="runs/a", resume=True',
        _TRAIN,
        "leave it out, and use fedpriv resume runs/a",
    ),
    _option(_TRAIN, "", "seed", "random_seed random_state manual_seed rng rng_seed"),
    _option(_TRAIN, "", "secret_seed", "noise_seed noise_generator generator"),
    _option(_TRAIN, "log", "stop_on", "nan_policy terminate_on_nan"),
    _option(_TRAIN, "log", "optimum", "f_star f_opt"),
    _option(_TRAIN, "log", "save_node_models", "save_all_models save_client_models"),
    _option(_TRAIN, "log", "client_tests", "client_test test_sets per_client_test"),
    Term(
        "alpha",
        "beta concentration dirichlet_alpha",
        "alpha={value}",
        'shares=fedpriv.data.partition("dirichlet", labels, n_clients, generator, {argument})',
        "data.partition: {kind: dirichlet, n_clients: 10, alpha: {value}}",
    ),
    Term("client_names", "names client_ids cids", "client_names={value}", _TRAIN, "leave it out; the data name them"),
)

EXAMPLES = {
    "aggregator": "Aggregate()",
    "at_most": "0.1",
    "band": "8",
    "batches": "100",
    "blocks": "10",
    "bound": "1.0",
    "buffers": "4",
    "clients": "clients",
    "coefficients": "torch.ones(1, 2)",
    "colluders": "1",
    "datasets": "[dataset_of_client_0, dataset_of_client_1]",
    "delta": "1e-5",
    "epochs": "fedpriv.Epochs(length=10)",
    "epoch_length": "10",
    "epsilon": "3.0",
    "epsilon_bar": "1.0",
    "eta": "1.0",
    "every": "10",
    "compare.clients": "make_clients",
    "common": '{"privacy": fedpriv.Privacy(epsilon=3.0), "rounds": 20}',
    "settings": '{"fedavg": {"strategy": fedpriv.fedavg(learning_rate=0.1)}}',
    "accountant": "[(1.1, 0.01, 1000)]",
    "poisson_sampling": "True",
    "records": "result.charged",
    "fit.epochs": "3",
    "optimizer": "torch.optim.SGD(model.parameters(), lr=0.1)",
    "from_opacus.name": '"earlier"',
    "feasible": "fedpriv.EuclideanBall(radius=1.0)",
    "feature": "0",
    "folder": '"runs/a"',
    "function": "my_function",
    "Custom.function": "lambda round_index: 1.0",
    "LinkFunction.function": "lambda round_index: [(0, 1)]",
    "graph": "networkx.cycle_graph(8)",
    "label": "0",
    "TableEncoder.label": '"income"',
    "lam": "0.01",
    "layers": '("head",)',
    "learning_rate": "0.1",
    "length": "10",
    "load": "load",
    "loader": "torch.utils.data.DataLoader(dataset)",
    "local_step": "LocalStep()",
    "loss": "torch.nn.CrossEntropyLoss()",
    "max_examples": "100",
    "min_honest": "5",
    "model": "torch.nn.Linear(4, 2)",
    "n_classes": "10",
    "n_clients": "10",
    "n_features": "4",
    "name": '"digits"',
    "node": "0",
    "offset": "torch.zeros(1)",
    "padding": "2",
    "path": '"metrics.jsonl"',
    "Budget.path": '"budget.json"',
    "peak": "0.1",
    "pipeline": "pipeline",
    "privacy": "fedpriv.Privacy(epsilon=3.0, delta=1e-5)",
    "proximal": "0.1",
    "radius": "1.0",
    "rate": "0.01",
    "ratio": "1.01",
    "Pairwise.ratio": "0.1",
    "results": "[result, other]",
    "rho": "1.0",
    "rounds": "100",
    "size": "10",
    "sizes": "sizes",
    "smoothness": "1.0",
    "start": "0.1",
    "strategy": "fedpriv.fedavg(learning_rate=0.1)",
    "trials": "20",
}
"""A good value of a parameter that must be given, by its name, or by `Owner.name` where owners differ."""


KINDS = {
    "Strategy": (
        "fedpriv.fedavg(learning_rate=0.1) and its kin, or an algorithm of your own with "
        "fedpriv.Strategy(local_step, aggregator)"
    ),
    "Privacy": 'fedpriv.Privacy(epsilon=3.0, delta=1e-5), or without privacy fedpriv.Privacy(at="none")',
    "Stop": 'fedpriv.Stop("accuracy", patience=5)',
    "Activity": (
        "fedpriv.RandomNodes(0.5), fedpriv.RandomEdges(1), fedpriv.RandomLinks(0.5), or fedpriv.LinkFunction(function) "
        "for a function from a round to pairs of nodes"
    ),
    "networkx.Graph": "networkx.cycle_graph(10), networkx.from_numpy_array(adjacency) or networkx.Graph(pairs)",
    "numpy.ndarray": "a matrix [n, n], or a rule such as fedpriv.network.mixing.metropolis",
    "RoundNetwork": "fedpriv.Star(n_clients=10) or fedpriv.Graph(networkx.cycle_graph(10))",
    "Optimizer": "fedpriv.Sgd(), fedpriv.Momentum(), fedpriv.Adam() or fedpriv.AdamW()",
    "Mechanism": "fedpriv.Gaussian() or fedpriv.Laplace()",
    "Schedule": "fedpriv.Uniform(), fedpriv.Geometric(ratio=1.01) or fedpriv.Custom(function)",
    "Proximal": "fedpriv.strategies.proximal.L2(lam=0.01)",
    "Module": "a torch.nn.Module, e.g. torch.nn.Linear(4, 2)",
    "Tensor": "a tensor, e.g. torch.ones(2)",
    "Path": "pathlib.Path(...)",
}
"""What gives an object of a kind that has no constructor of its own, or an obvious one.

A kind is named by its class, or by package and class where two packages have a class of the name.
"""


def of_kind(table: Mapping[str, V], kind: type) -> V | None:
    """Returns the entry of a table by kinds, `KINDS` or `WORDS_FOR_KINDS`; None if it has none."""
    package = kind.__module__.partition(".")[0]
    return table.get(f"{package}.{kind.__name__}", table.get(kind.__name__))


_WITH_EPSILON = "fedpriv.Privacy(epsilon=3.0, delta=1e-5, {})"
_GRAPHS = {
    "ring": "networkx.cycle_graph(10)",
    "cycle": "networkx.cycle_graph(10)",
    "complete": "networkx.complete_graph(10)",
    "path": "networkx.path_graph(10)",
    "erdosrenyi": "networkx.gnp_random_graph(10, 0.5, seed=0)",
    "grid": "networkx.grid_2d_graph(2, 5)",
}
_NETWORKS = {
    "star": "fedpriv.Star(n_clients=10)",
    **{word: f"fedpriv.Graph({graph})" for word, graph in _GRAPHS.items()},
}
WORDS_FOR_KINDS = {
    "Privacy": {
        "none": 'fedpriv.Privacy(at="none")',
        "gaussian": _WITH_EPSILON.format("mechanism=fedpriv.Gaussian()"),
        "laplace": _WITH_EPSILON.format('mechanism=fedpriv.Laplace(), clip=fedpriv.Clip(1.0, norm="l1")'),
        "poisson": _WITH_EPSILON.format("sampling=fedpriv.Poisson(rate=0.01)"),
        "shuffle": _WITH_EPSILON.format("sampling=fedpriv.Allocation(batches=100)"),
        "allocation": _WITH_EPSILON.format("sampling=fedpriv.Allocation(batches=100)"),
        "local": _WITH_EPSILON.format("trust=fedpriv.Local()"),
        "ldp": _WITH_EPSILON.format("trust=fedpriv.Local()"),
        "central": _WITH_EPSILON.format("trust=fedpriv.Central()"),
        "secureaggregation": _WITH_EPSILON.format("trust=fedpriv.SecureAggregation(min_honest=5)"),
        "secagg": _WITH_EPSILON.format("trust=fedpriv.SecureAggregation(min_honest=5)"),
        "sample": _WITH_EPSILON.format('unit="sample"'),
        "client": _WITH_EPSILON.format('unit="client"'),
    },
    "Compute": {
        "cpu": 'fedpriv.Compute(device="cpu")',
        "cuda": 'fedpriv.Compute(device="cuda")',
        "gpu": 'fedpriv.Compute(device="cuda")',
        "mps": 'fedpriv.Compute(device="mps")',
    },
    "RoundNetwork": _NETWORKS,
    "fedpriv.Graph": _NETWORKS,
    "networkx.Graph": _GRAPHS,
    "numpy.ndarray": {
        "metropolis": "fedpriv.network.mixing.metropolis",
        "lazymetropolis": "fedpriv.network.mixing.lazy_metropolis",
    },
}
"""What a word means that is given where an object of a kind is wanted."""

CHOICES_ELSEWHERE = {
    "user": "client",
    "participant": "client",
    "silo": "client",
    "example": "sample",
    "record": "sample",
    "row": "sample",
    "instance": "sample",
    "add_or_remove": "add_remove",
    "add_or_remove_one": "add_remove",
    "unbounded": "add_remove",
    "replace": "replace_one",
    "substitute": "replace_one",
    "substitution": "replace_one",
    "bounded": "replace_one",
    "zero_out": "replace_one",
}
"""Words of other libraries and papers for a choice, such as a unit or a relation; `zero_out` is the weaker promise."""

TORCH_OPTIMIZERS = {"SGD": "Sgd", "Adam": "Adam", "AdamW": "AdamW"}
"""fedpriv's optimizers by the names of torch's."""


def example(name: str, owner: str = "") -> str:
    """Text of a good value of a parameter; `...` if there is no usual one."""
    return EXAMPLES.get(f"{owner}.{name}", EXAMPLES.get(name, "..."))


def suggestion(word: str, value: object, known: Collection[str], language: Language, place: str = "") -> str:
    """What to write for an unknown name, as the fix of an error.

    Args:
        word: The unknown name.
        value: Its value.
        known: The names that are known where it stands.
        language: In which language to write it.
        place: The section or function in which it is written; empty for the run itself.
    """
    shown = _written(value, language)
    meant = [term for term in TERMS if term.is_called(word.lower().replace("-", "_"), place)]
    if known:
        names = f" (there are: {', '.join(sorted(known))})"
    else:
        names = ""

    # a setting of this very object
    for term in meant:
        for name in (term.name, *term.also):
            if name in known and name != word:
                return f"unknown; it is called {name} here: write {_text(term, name, shown, language)}"

    # a setting of this very object that follows from the value
    for term in meant:
        for conversion in term.conversions:
            if conversion.name in known:
                return f"unknown; {conversion.name} stands for it here: write {conversion.text(shown, language)}"

    # a slip of the pen; where other libraries have this very word, of one letter in ten at most
    cutoff = 0.8
    if meant:
        cutoff = 0.9
    if difflib.get_close_matches(word, known, n=1, cutoff=cutoff):
        return f"unknown{nearest(word, known)}{names}"

    # a setting of another object
    if meant:
        text = _text(meant[0], None, shown, language)
        if text.startswith("leave it out"):
            return f"unknown; {text}"
        return f"unknown; it belongs elsewhere: write {text}"

    close = nearest(word, known) or "; there are no options here"
    return f"unknown{close}{names if 'did you mean' in close else ''}"


def on_command_line(fix: str) -> str:
    """Returns a fix whose YAML stands as the command line takes it.

    Example:
        >>> on_command_line("it is called clip here: write privacy.clip: {bound: 1}")
        "it is called clip here: write 'privacy.clip={bound: 1}'"
    """
    return re.sub(r"write ([\w.]+: (?:\{.*\}|\[.*\]|[^\s,;]+))", lambda match: f"write {_as_setting(match[1])}", fix)


def _as_setting(yaml: str) -> str:
    """Returns `path: value` as `path=value`, in quotes where a shell needs them."""
    path, _, value = yaml.partition(": ")
    setting = f"{path}={value}"
    if "{" in setting or "[" in setting:
        return f"'{setting}'"
    return setting


def setting_for_option(option: str) -> str | None:
    """The setting of the command line that an option such as `--max-grad-norm` means; None if it means none.

    Example:
        >>> setting_for_option("--max-grad-norm")
        "'privacy.clip={bound: VALUE}'"
    """
    word = option.lstrip("-").lower().replace("-", "_")
    term = next((term for term in TERMS if term.is_called(word)), None)
    if term is None or term.yaml.startswith("leave it out"):
        return None
    return _as_setting(term.yaml.replace("{value}", "VALUE"))


def _text(term: Term, name: str | None, value: str, language: Language) -> str:
    """What to write for a term: as the parameter `name`, or where it belongs."""
    if name is not None and name != term.name:
        if language == "python":
            text = f"{name}={{value}}"
        else:
            text = f"{name}: {{value}}"
        return text.replace("{value}", value)
    if language == "yaml":
        text = term.yaml
    elif name is not None:
        text = term.argument
    else:
        text = term.call.replace("{argument}", term.argument)
    text = text.replace("{value}", value)
    if term.note:
        return f"{text} ({term.note})"
    return text


def _written(value: object, language: Language) -> str:
    """A value as the language writes it; `...` for one that is no number or short text."""
    if language == "yaml":
        if isinstance(value, bool) or value is None:
            return {True: "true", False: "false", None: "null"}[value]
        if isinstance(value, int | float | str) and len(str(value)) <= 40:
            return str(value)
        return "..."
    simple = value is None or isinstance(value, bool | int | float | str)
    if simple and len(repr(value)) <= 40:
        return repr(value)
    return "..."
