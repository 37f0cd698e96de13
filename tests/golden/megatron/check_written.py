"""Loads what `bevatron convert --ckpt-format torch_dist` writes with megatron-core on the CPU, under several layouts,
and trains ten more steps.

    python check_written.py BEVATRON GOLDEN_MODELS OUT.json [CASE ..]

For each case: the files that were written (bytes and CRC-32), and the losses that megatron-core then has. The C++ test
writes the same files again and compares; megatron-core itself is only needed to make OUT.json.
megatron-core 0.16.1, torch 2.15 (CPU, gloo).
"""
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zlib

import torch
import torch.multiprocessing as mp

import cpu_megatron
import make_checkpoints as made

HERE = os.path.dirname(os.path.abspath(__file__))
# A run of Megatron's, the flags of convert, and the layouts that load what it writes.
LOCAL = "--transformer-impl local"
RUNS = [
    ("gpt", LOCAL, [dict(), dict(tp=2), dict(tp=2, pp=2), dict(dp=2)]),
    ("gqa", LOCAL, [dict(), dict(tp=2, dp=2), dict(pp=2)]),
    ("legacy", LOCAL, [dict(tp=2, pp=2, vpp=2)]),
    ("moe_buckets", LOCAL, [dict(pp=2)]),
    ("moe_buckets", LOCAL + " --ep 2", [dict(ep=2, pp=2), dict(ep=2, dp=4)]),
    ("moe_mixed", LOCAL + " --ep 2", [dict(ep=2, dp=4)]),
    ("moe_etp", LOCAL + " --ep 2 --etp 2", [dict(ep=2, etp=2)]),
    ("qk_bf16", LOCAL, [dict(tp=2)]),
]
MODELS = [("llama_gqa", LOCAL)]


def name_of(layout):
    return " ".join(f"{axis} {ranks}" for axis, ranks in layout.items()) or "one rank"


def world_of(layout):
    dense = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("dp", 1)
    return max(dense, layout.get("ep", 1) * layout.get("etp", 1) * layout.get("pp", 1))


def built(args, layout, how):
    from megatron.core import parallel_state as ps

    for name, axis in (("tensor_model_parallel_size", "tp"), ("pipeline_model_parallel_size", "pp"),
                       ("expert_model_parallel_size", "ep")):
        setattr(args, name, layout.get(axis, 1))
    args.expert_tensor_parallel_size = layout.get("etp", 1)
    args.virtual_pipeline_model_parallel_size = layout.get("vpp")
    ps.initialize_model_parallel(
        tensor_model_parallel_size=layout.get("tp", 1), pipeline_model_parallel_size=layout.get("pp", 1),
        virtual_pipeline_model_parallel_size=layout.get("vpp"), expert_model_parallel_size=layout.get("ep", 1),
        expert_tensor_parallel_size=layout.get("etp", 1) if "ep" in layout else None)
    config = made.config_of(args)
    return config, made.build(args, how, config)


def sharded_state(args, model, optimizer, content):
    from megatron.core import parallel_state as ps

    metadata = dict(content, dp_cp_group=ps.get_data_parallel_group(with_context_parallel=True))
    state = {}
    for index, chunk in enumerate(model):
        inner = chunk.module.module if args.bf16 else chunk.module
        state["model" if len(model) == 1 else f"model{index}"] = inner.sharded_state_dict(metadata=metadata)
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=True, metadata=metadata)
    return state


def keep_steps():
    """torch's AdamW has a step for each parameter, which Apex's and Transformer Engine's Adam have not."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    set_states = DistributedOptimizer._set_main_param_and_optimizer_states

    def with_step(self, param, tensors):
        own = self._get_main_param_and_optimizer_states(param)
        return set_states(self, param, dict(tensors, **{key: own[key] for key in own if key == "step"}))

    DistributedOptimizer._set_main_param_and_optimizer_states = with_step


def load(folder, args, model, optimizer):
    """As load_checkpoint does: the state asked for is that of content_metadata."""
    from megatron.core import dist_checkpointing

    content = dist_checkpointing.load_content_metadata(folder)
    asked = sharded_state(args, model, optimizer, content)
    got = dist_checkpointing.load(asked, folder)
    for index, chunk in enumerate(model):
        inner = chunk.module.module if args.bf16 else chunk.module
        inner.load_state_dict(got["model" if len(model) == 1 else f"model{index}"])
    if optimizer is not None:
        optimizer.load_state_dict(got["optimizer"])
    return got


def train(rank, world, port, folder, layout, out):
    cpu_megatron.start(rank, world, port)
    keep_steps()
    args = torch.load(os.path.join(folder, "common.pt"), weights_only=False)["args"]
    how = dict(sharding="fully_reshardable")
    # The attributes of pretrain_gpt.py that common.pt does not have.
    args.use_distributed_optimizer = True
    config, model = built(args, layout, how)
    optimizer, scheduler = made.optimizer_of(args, model)
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    # Without Apex torch's optimizer has no state to load into before its first step.
    made.train_step(args, config, model, optimizer, scheduler, made.batches()[0])
    got = load(folder, args, model, optimizer)
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for state in one.optimizer.state.values():
            state["step"] = state["step"].clone()  # they share one, which each parameter would advance
    scheduler.num_steps = 0
    scheduler.load_state_dict(got["opt_param_scheduler"])
    assert got["iteration"] == made.WARM and args.consumed_train_samples == made.WARM * made.GLOBAL
    losses = [made.train_step(args, config, model, optimizer, scheduler, batch)
              for batch in made.batches()[made.WARM:]]
    if rank == world - 1:
        json.dump(losses, open(out, "w"))
    torch.distributed.barrier()


def score(rank, world, port, folder, tokens, out):
    cpu_megatron.start(rank, world, port)
    args = torch.load(os.path.join(folder, "common.pt"), weights_only=False)["args"]
    args.use_distributed_optimizer = False
    _, model = built(args, {}, {})
    load(folder, args, model, None)
    ids = torch.tensor(tokens)
    length = ids.shape[1] - 1
    mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)[None, None]
    with torch.no_grad():
        losses = model[0](ids[:, :-1], torch.arange(length).expand(len(tokens), length), mask, labels=ids[:, 1:])
    json.dump(losses.float().mean().item(), open(out, "w"))


def files_of(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        content = open(os.path.join(folder, name), "rb").read()
        out[name] = [len(content), zlib.crc32(content)]
    return out


def convert(program, words):
    subprocess.run([program, "convert", *words], check=True)


PORTS = iter(range(20000 + os.getpid() % 20000, 65000))


def spawn(target, world, *words):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        mp.spawn(target, (world, next(PORTS), *words, out.name), nprocs=world)
        return json.load(open(out.name))


def check_run(program, folder, name, flags, layouts):
    with tarfile.open(os.path.join(HERE, name + ".tar.gz")) as archive:
        archive.extractall(folder)
    convert(program, ["--load", f"{folder}/{name}", "--save", f"{folder}/out", "--ckpt-format", "torch_dist",
                      *flags.split()])
    step = f"{folder}/out/iter_{made.WARM:07d}"
    expected = json.load(open(f"{folder}/{name}/expected.json"))["losses"]
    case = {"load": name, "flags": flags, "step": os.path.basename(step), "files": files_of(step), "losses": {}}
    for layout in layouts:
        losses = spawn(train, world_of(layout), step, layout)
        case["losses"][name_of(layout)] = losses
        print(name, name_of(layout), max(abs(a - b) for a, b in zip(losses, expected)), flush=True)
    return case


def check_model(program, models, folder, name, flags):
    convert(program, ["--hf-model", f"{models}/{name}", "--save", f"{folder}/out", "--ckpt-format", "torch_dist",
                      *flags.split()])
    step = f"{folder}/out/release"
    tokens = [[(7 * row + 3 * i) % 50 + 1 for i in range(9)] for row in range(2)]
    loss = spawn(score, 1, step, tokens)
    print(name, loss, flush=True)
    return {"hf_model": name, "flags": flags, "step": "release", "files": files_of(step), "tokens": tokens,
            "loss": loss}


def main():
    program, models, out = sys.argv[1:4]
    wanted, cases = sys.argv[4:], []
    if wanted and os.path.exists(out):
        cases = [case for case in json.load(open(out))["cases"]
                 if case.get("load", case.get("hf_model")) not in wanted]
    for name, *how in [*MODELS, *RUNS]:
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            cases.append(check_run(program, folder, name, *how) if len(how) > 1 else
                         check_model(program, models, folder, name, *how))
    json.dump({"cases": cases}, open(out, "w"), indent=None, separators=(",", ":"))


if __name__ == "__main__":
    main()
