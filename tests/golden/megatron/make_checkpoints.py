"""Checkpoints of tiny models trained by megatron-core on the CPU, with the losses of the ten steps after them.

    python make_checkpoints.py OUT [CASE ..]

writes OUT/CASE/iter_0000003/.., OUT/CASE/latest_checkpointed_iteration.txt and OUT/CASE/expected.json: the batches, as
`bevatron train --batches` takes them, and the losses of iterations 4 to 13. OUT/CASE.tar.gz has all of it.
megatron-core 0.16.1, torch 2.15 (CPU, gloo).
"""
import argparse
import gzip
import json
import os
import random
import sys
import tarfile

import torch
import torch.distributed.checkpoint
import torch.multiprocessing as mp

import cpu_megatron

SEQ, VOCAB, PADDED, MICRO, GLOBAL, WARM, NEXT = 12, 30, 32, 2, 8, 3, 10

GPT = dict(num_layers=2, hidden_size=8, num_attention_heads=2, ffn_hidden_size=20)
GQA = dict(num_layers=2, hidden_size=8, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=12, swiglu=True,
           normalization="RMSNorm", position_embedding_type="rope", add_bias_linear=False,
           untie_embeddings_and_output_weights=True, kv_channels=4)
MOE = dict(GQA, num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=6, moe_router_load_balancing_type="none",
           moe_aux_loss_coeff=0.0)
DEEP = dict(num_layers=4)
QK = dict(GQA, qk_layernorm=True, add_qkv_bias=True)

# Kind of model, layout, and how it is saved.
CASES = {
    "gpt": (dict(GPT, untie_embeddings_and_output_weights=True), dict(tp=2, pp=2), dict(sharding="fully_reshardable")),
    "gqa": (GQA, dict(tp=2, dp=2), dict(sharding="dp_reshardable")),
    "moe": (MOE, dict(ep=2), dict(sharding="fully_reshardable")),
    "moe_buckets": (MOE, dict(ep=2, dp=4), dict(sharding="dp_reshardable")),
    "moe_mixed": (dict(MOE, moe_layer_freq=[0, 1], moe_shared_expert_intermediate_size=10), dict(ep=2), dict(
        sharding="fully_reshardable")),
    "moe_etp": (MOE, dict(ep=2, etp=2), dict(sharding="fully_reshardable")),
    "shifted": (dict(GQA, bf16=True), dict(dp=2), dict(sharding="fully_reshardable", shifted=True)),
    "qk_bf16": (dict(QK, bf16=True), dict(tp=2), dict(sharding="fully_reshardable")),
    "plain": (GPT, dict(), dict(distributed=False)),
    "plain_bf16": (dict(GQA, bf16=True), dict(tp=2), dict(distributed=False)),
    "moe_one": (MOE, dict(), dict(distributed=False)),
    "singleton": (MOE, dict(ep=2), dict(sharding="fully_reshardable", singleton=True)),
    "pp_buckets": (dict(GPT, **DEEP), dict(pp=2, dp=2), dict(sharding="dp_reshardable")),
    "fsdp": (dict(MOE, moe_layer_freq=[0, 1]), dict(), dict(format="fsdp_dtensor", distributed=False)),
    "legacy": (dict(GQA, **DEEP), dict(tp=2, pp=2, vpp=2), dict(format="torch", distributed=False)),
    "legacy_dist": (GPT, dict(tp=2, dp=2), dict(format="torch")),
    "legacy_moe": (MOE, dict(ep=2), dict(format="torch", distributed=False)),
    "legacy_bf16": (dict(QK, bf16=True), dict(tp=2, pp=2), dict(format="torch", distributed=False)),
}


def arguments(model, layout, how):
    """What pretrain_gpt.py would have in its namespace, as far as it matters."""
    args = argparse.Namespace(
        num_layers=2, hidden_size=16, ffn_hidden_size=None, num_attention_heads=4, num_query_groups=1,
        group_query_attention="num_query_groups" in model, kv_channels=None, max_position_embeddings=16,
        position_embedding_type="learned_absolute", add_position_embedding=True, rotary_base=10000,
        rotary_percent=1.0, rotary_interleaved=False, use_rope_scaling=False, add_bias_linear=True,
        add_qkv_bias=False, swiglu=False, squared_relu=False, normalization="LayerNorm", norm_epsilon=1e-5,
        apply_layernorm_1p=False, qk_layernorm=False, untie_embeddings_and_output_weights=False,
        multi_latent_attention=False, hidden_dropout=0.0, attention_dropout=0.0, init_method_std=0.02,
        num_experts=None, moe_layer_freq=1, moe_ffn_hidden_size=None, moe_router_topk=2,
        moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.0, moe_z_loss_coeff=None,
        moe_router_pre_softmax=False, moe_router_score_function="softmax", moe_router_num_groups=None,
        moe_router_group_topk=None, moe_router_topk_scaling_factor=None, moe_router_enable_expert_bias=False,
        moe_shared_expert_intermediate_size=None, moe_grouped_gemm=False, mtp_num_layers=None, window_size=None,
        seq_length=SEQ, micro_batch_size=MICRO, global_batch_size=GLOBAL, train_iters=40, train_samples=None,
        seed=1234, bf16=False, fp16=False, params_dtype=torch.float32, vocab_size=None, padded_vocab_size=PADDED,
        make_vocab_size_divisible_by=32, tokenizer_type="NullTokenizer", tokenizer_model=None, data_path=None,
        split="969,30,1", optimizer="adam", lr=0.02, min_lr=0.002, lr_decay_style="cosine", lr_decay_iters=30,
        lr_warmup_iters=2, lr_warmup_fraction=None, weight_decay=0.1, start_weight_decay=0.1, end_weight_decay=0.1,
        weight_decay_incr_style="constant", adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, clip_grad=1.0,
        use_distributed_optimizer=how.get("distributed", True), consumed_train_samples=WARM * GLOBAL,
        consumed_valid_samples=0, iteration=WARM, ckpt_format=how.get("format", "torch_dist"), rank=0, world_size=1,
        tensor_model_parallel_size=layout.get("tp", 1), pipeline_model_parallel_size=layout.get("pp", 1),
        virtual_pipeline_model_parallel_size=layout.get("vpp"), context_parallel_size=1,
        expert_model_parallel_size=layout.get("ep", 1), expert_tensor_parallel_size=layout.get("etp", 1),
        sequence_parallel=False, no_save_rng=None,
        transformer_impl="local")
    vars(args).update(model)
    if args.position_embedding_type == "rope":
        args.add_position_embedding = False
    if args.bf16:
        args.params_dtype = torch.bfloat16
    if args.kv_channels is None:
        args.kv_channels = args.hidden_size // args.num_attention_heads
    return args


def config_of(args):
    import torch.nn.functional as F
    from megatron.core.transformer import TransformerConfig

    fields = {name: value for name, value in vars(args).items()
              if name in TransformerConfig.__dataclass_fields__ and value is not None}
    del fields["bf16"]
    fields["num_query_groups"] = args.num_query_groups if args.group_query_attention else args.num_attention_heads
    fields["pipeline_dtype"] = args.params_dtype
    if args.num_experts is None:
        fields = {name: value for name, value in fields.items() if "moe" not in name and "expert" not in name}
    else:
        fields.update(num_moe_experts=args.num_experts, moe_token_dispatcher_type="allgather")
    return TransformerConfig(
        **fields, use_cpu_initialization=True, gradient_accumulation_fusion=False, masked_softmax_fusion=False,
        bias_dropout_fusion=False, bias_activation_fusion=False, persist_layer_norm=False, apply_rope_fusion=False,
        layernorm_epsilon=args.norm_epsilon, gated_linear_unit=args.swiglu, bf16=args.bf16,
        activation_func=F.silu if args.swiglu else F.gelu, variable_seq_lengths=False,
        batch_p2p_comm=False)


def build(args, how, config):
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.transformer.module import Float16Module

    chunks = []
    stages = args.virtual_pipeline_model_parallel_size or 1
    for stage in range(stages):
        vp = stage if stages > 1 else None
        if args.num_experts is not None:
            spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization,
                                              vp_stage=vp)
        else:
            spec = get_gpt_layer_local_spec(qk_layernorm=args.qk_layernorm, normalization=args.normalization)
        torch.manual_seed(1234 + 100 * ps.get_pipeline_model_parallel_rank() + stage)
        model = GPTModel(
            config, spec, vocab_size=args.padded_vocab_size, max_sequence_length=args.max_position_embeddings,
            pre_process=ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp),
            post_process=ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp),
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type, rotary_percent=args.rotary_percent,
            rotary_base=args.rotary_base, vp_stage=vp)
        if args.bf16:
            model = Float16Module(config, model)
        chunks.append(model)
    # Several buckets, as large models have. megatron-core 0.16.1 writes fully_reshardable state shifted by the padding
    # of earlier buckets (its issue 504), so there is one bucket then, except where that is wanted. (A tied embedding
    # has a bucket of its own on several stages.)
    buckets = how.get("sharding") == "dp_reshardable" or how.get("shifted", False)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=args.use_distributed_optimizer,
                                        bucket_size=500, overlap_grad_reduce=buckets)
    return [DistributedDataParallel(config, ddp, chunk, disable_bucketing=index > 0)
            for index, chunk in enumerate(chunks)]


def optimizer_of(args, model):
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=args.lr, min_lr=args.min_lr, weight_decay=args.weight_decay,
                        adam_beta1=args.adam_beta1, adam_beta2=args.adam_beta2, adam_eps=args.adam_eps,
                        clip_grad=args.clip_grad, bf16=args.bf16, params_dtype=args.params_dtype,
                        use_distributed_optimizer=args.use_distributed_optimizer), model)
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=args.lr, min_lr=args.min_lr, lr_warmup_steps=args.lr_warmup_iters * GLOBAL,
        lr_decay_steps=args.lr_decay_iters * GLOBAL, lr_decay_style=args.lr_decay_style,
        start_wd=args.weight_decay, end_wd=args.weight_decay, wd_incr_steps=args.train_iters * GLOBAL,
        wd_incr_style="constant", use_checkpoint_opt_param_scheduler=False, override_opt_param_scheduler=False)
    return optimizer, scheduler


def batches():
    numbers = random.Random(7)
    return [[[numbers.randrange(VOCAB) for _ in range(SEQ + 1)] for _ in range(GLOBAL)] for _ in range(WARM + NEXT)]


def train_step(args, config, model, optimizer, scheduler, batch):
    """One iteration; the loss on the last stage, None elsewhere."""
    from megatron.core import parallel_state as ps
    from megatron.core.pipeline_parallel import get_forward_backward_func

    replicas, replica = ps.get_data_parallel_world_size(), ps.get_data_parallel_rank()
    rows = [batch[i:i + MICRO] for i in range(0, GLOBAL, MICRO)]
    mine = rows[replica::replicas]
    positions = torch.arange(SEQ).expand(MICRO, SEQ)

    def forward(iterator, chunk):
        tokens = torch.tensor(next(iterator))
        mask = torch.triu(torch.ones(SEQ, SEQ, dtype=torch.bool), diagonal=1)[None, None]
        out = chunk(tokens[:, :-1], positions, mask, labels=tokens[:, 1:])
        return out, lambda losses: (losses.float().mean(), {"loss": losses.float().mean().detach()})

    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    iterators = [iter(mine) for _ in model]
    results = get_forward_backward_func()(
        forward_step_func=forward, data_iterator=iterators if len(model) > 1 else iterators[0],
        model=model if len(model) > 1 else model[0], num_microbatches=len(mine), seq_length=SEQ,
        micro_batch_size=MICRO, forward_only=False)
    ok, _, _ = optimizer.step()
    assert ok
    scheduler.step(increment=GLOBAL)
    if not results:
        return None
    loss = torch.stack([result["loss"] for result in results]).mean()
    torch.distributed.all_reduce(loss, group=ps.get_data_parallel_group())
    return (loss / replicas).item()


def state_of(args, how, model, optimizer, scheduler):
    from megatron.core import parallel_state as ps
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    state = {"args": args, "checkpoint_version": 3.0, "iteration": WARM}
    metadata = None
    if args.ckpt_format == "torch_dist":
        metadata = {"singleton_local_shards": how.get("singleton", False), "chained_optim_avoid_prefix": True,
                    "dp_cp_group": ps.get_data_parallel_group(with_context_parallel=True)}
        if args.use_distributed_optimizer:
            metadata["distrib_optim_sharding_type"] = how["sharding"]
            metadata["distrib_optim_fully_reshardable_mem_efficient"] = False
    for index, chunk in enumerate(model):
        inner = chunk.module.module if args.bf16 else chunk.module
        key = "model" if len(model) == 1 else f"model{index}"
        state[key] = (inner.sharded_state_dict(metadata=metadata) if metadata else
                      inner.state_dict_for_save_checkpoint())
    if metadata:
        state["optimizer"] = optimizer.sharded_state_dict(state, metadata=metadata)
        rng = [{"random_rng_state": random.getstate(), "torch_rng_state": torch.get_rng_state()}]
        state["rng_state"] = ShardedObject(
            "rng_state", rng, (args.pipeline_model_parallel_size, args.tensor_model_parallel_size),
            (ps.get_pipeline_model_parallel_rank(), ps.get_tensor_model_parallel_rank()),
            replica_id=ps.get_data_parallel_rank(with_context_parallel=True))
    else:
        state["optimizer"] = optimizer.state_dict()
        state["rng_state"] = [{"random_rng_state": random.getstate(), "torch_rng_state": torch.get_rng_state()}]
    state["opt_param_scheduler"] = scheduler.state_dict()
    state["num_floating_point_operations_so_far"] = 10**21
    return state, metadata


def fsdp_state(args, model, optimizer, scheduler):
    """What Megatron-FSDP saves, with whole tensors: gate and up, and experts, are tensors of their own."""
    torch_optimizer = optimizer.chained_optimizers[0].optimizer if hasattr(optimizer, "chained_optimizers") else (
        optimizer.optimizer)
    states = dict(torch_optimizer.state)
    if hasattr(optimizer, "chained_optimizers"):
        for one in optimizer.chained_optimizers[1:]:
            states.update(one.optimizer.state)
    weights, moments = {}, {}
    for name, param in model[0].module.named_parameters():
        parts = {name: slice(None)}
        if "linear_fc1" in name:
            half = param.shape[0] // 2
            parts = {name + "_w": slice(0, half), name + "_v": slice(half, None)}
        for part, rows in parts.items():
            weights["module." + part] = param.detach()[rows].clone()
            moments["module.module." + part] = {key: value[rows].clone() if value.ndim else value
                                                for key, value in states[param].items()}
    return {"args": args, "checkpoint_version": 3.0, "iteration": WARM, "model": weights,
            "optimizer": {"state": moments}, "opt_param_scheduler": scheduler.state_dict(),
            "num_floating_point_operations_so_far": 10**21}


def save(args, how, folder, model, optimizer, scheduler):
    from megatron.core import dist_checkpointing, parallel_state as ps

    if args.ckpt_format == "fsdp_dtensor":
        state = fsdp_state(args, model, optimizer, scheduler)
        return torch.distributed.checkpoint.save(state, checkpoint_id=os.path.join(folder, f"iter_{WARM:07d}"))
    state, metadata = state_of(args, how, model, optimizer, scheduler)
    step = os.path.join(folder, f"iter_{WARM:07d}")
    if metadata:
        os.makedirs(step, exist_ok=True)
        content = {key: value for key, value in metadata.items() if key != "dp_cp_group"}
        dist_checkpointing.save(state, step, ("torch_dist", 1), content_metadata=content)
    else:
        name = f"mp_rank_{ps.get_tensor_model_parallel_rank():02d}"
        if args.pipeline_model_parallel_size > 1:
            name += f"_{ps.get_pipeline_model_parallel_rank():03d}"
        if args.expert_model_parallel_size > 1:
            name += f"_{ps.get_expert_model_parallel_rank():03d}"
        path = os.path.join(step, name)
        if args.use_distributed_optimizer:
            os.makedirs(path, exist_ok=True)
            optimizer.save_parameter_state(os.path.join(path, "distrib_optim.pt"))
        if ps.get_data_parallel_rank() == 0 or ps.get_expert_data_parallel_rank() == 0:
            os.makedirs(path, exist_ok=True)
            torch.save(state, os.path.join(path, "model_optim_rng.pt"))
    torch.distributed.barrier()


def run(rank, world, port, out, name):
    cpu_megatron.start(rank, world, port)
    from megatron.core import parallel_state as ps

    model_flags, layout, how = CASES[name]
    args = arguments(model_flags, layout, how)
    args.world_size = world
    ps.initialize_model_parallel(
        tensor_model_parallel_size=layout.get("tp", 1), pipeline_model_parallel_size=layout.get("pp", 1),
        virtual_pipeline_model_parallel_size=layout.get("vpp"), expert_model_parallel_size=layout.get("ep", 1),
        expert_tensor_parallel_size=layout.get("etp", 1) if "ep" in layout else None)
    config = config_of(args)
    model = build(args, how, config)
    optimizer, scheduler = optimizer_of(args, model)
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    all_batches, losses = batches(), []
    folder = os.path.join(out, name)
    for index, batch in enumerate(all_batches):
        if index == WARM:
            save(args, how, folder, model, optimizer, scheduler)
        losses.append(train_step(args, config, model, optimizer, scheduler, batch))
    if rank == world - 1:
        json.dump({"case": name, "losses": losses[WARM:], "first_losses": losses[:WARM],
                   "batches": [{"input_ids": batch} for batch in all_batches]},
                  open(os.path.join(folder, "expected.json"), "w"))
        open(os.path.join(folder, "latest_checkpointed_iteration.txt"), "w").write(str(WARM))
        print(name, losses)
    torch.distributed.barrier()


def pack(out, name):
    def plain(info):
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        return info

    with gzip.GzipFile(os.path.join(out, name + ".tar.gz"), "wb", compresslevel=9, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            archive.add(os.path.join(out, name), arcname=name, filter=plain)


def main():
    out, names = sys.argv[1], sys.argv[2:] or list(CASES)
    for index, name in enumerate(names):
        layout = CASES[name][1]
        world = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("dp", 1)
        world = max(world, layout.get("ep", 1) * layout.get("etp", 1) * layout.get("pp", 1))
        mp.spawn(run, (world, 20000 + os.getpid() % 20000 + index, out, name), nprocs=world)
        pack(out, name)


if __name__ == "__main__":
    main()
