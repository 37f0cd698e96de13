"""A training step of PyTorch on one GPU, as a careful user would write it: tokens/s, TFLOP/s and memory as one JSON line.

usage: gpu_torch_step.py MODEL[-LAYERS] B T [ACCUMULATE [ITERATIONS]]; the time is the median of the second half of the iterations
Layers compiled one by one, cuDNN attention, fused AdamW, gradient clipping; weights, gradients and moments in bf16. Experts
through torch._grouped_mm on rows in their order, without padding or a wait for the host; all get the same load, since random logits
take the place of the router's (its product and gradient stay).
FLOPs are counted as Bevatron's (src/plan/flops.cpp): 6 for a weight that a token meets, causal attention by half.
"""
import json, sys, time
from dataclasses import dataclass, replace
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass
class Sizes:
    vocab: int
    hidden: int
    ffn: int  # of one expert, where there are experts
    heads: int
    kv: int
    layers: int
    tied: bool = False
    head_size: int = 0  # hidden / heads, if 0
    experts: int = 0
    topk: int = 0
    qk_norm: bool = False


MODELS = {
    "llama-3-8b": Sizes(128256, 4096, 14336, 32, 8, 32),
    "llama-3.2-1b": Sizes(128256, 2048, 8192, 32, 8, 16, tied=True),
    "qwen2.5-1.5b": Sizes(151936, 1536, 8960, 12, 2, 28, tied=True),
    "qwen2.5-0.5b": Sizes(151936, 896, 4864, 14, 2, 24, tied=True),
    "gpt124m": Sizes(50304, 768, 2048, 12, 12, 12, tied=True),
    "qwen3-30b-a3b": Sizes(151936, 2048, 768, 32, 4, 48, head_size=128, experts=128, topk=8, qk_norm=True),
}
name, B, T = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
accumulate = int(sys.argv[4]) if len(sys.argv) > 4 else 1
iterations = int(sys.argv[5]) if len(sys.argv) > 5 else 8
m = MODELS.get(name) or replace(MODELS[name.rpartition("-")[0]], layers=int(name.rpartition("-")[2]))
D = m.head_size or m.hidden // m.heads


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Permute(torch.autograd.Function):
    """Rows of tokens in the order of experts. Its gradient gathers too, where indexing's own would add by atomics."""

    @staticmethod
    def forward(ctx, x, order, place):
        ctx.save_for_backward(place)
        return x[order // m.topk]

    @staticmethod
    def backward(ctx, dy):
        (place,) = ctx.saved_tensors
        return dy[place].view(-1, m.topk, dy.shape[1]).sum(1), None, None


class Combine(torch.autograd.Function):
    """The sum of a token's rows."""

    @staticmethod
    def forward(ctx, y, order, place):
        ctx.save_for_backward(order)
        return y[place].view(-1, m.topk, y.shape[1]).sum(1)

    @staticmethod
    def backward(ctx, dx):
        (order,) = ctx.saved_tensors
        return dx[order // m.topk], None, None


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up = nn.Linear(m.hidden, 2 * m.ffn, bias=False)
        self.down = nn.Linear(m.ffn, m.hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(m.hidden, m.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(m.experts, 2 * m.ffn, m.hidden))
        self.down = nn.Parameter(torch.empty(m.experts, m.hidden, m.ffn))

    def forward(self, x):
        tokens = x.view(-1, m.hidden)
        logits = self.router(tokens).float()
        logits = logits + (torch.randn_like(logits) - logits).detach()
        best, chosen = logits.topk(m.topk, -1)
        probs = best.softmax(-1)
        experts, order = chosen.flatten().sort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=x.device))
        ends = torch.searchsorted(experts, torch.arange(m.experts, device=x.device), right=True).int()
        rows = Permute.apply(tokens, order, place)
        gate, up = torch._grouped_mm(rows, self.gate_up.transpose(-2, -1), offs=ends).chunk(2, -1)
        inner = (F.silu(gate) * up * probs.flatten()[order].unsqueeze(-1)).to(x.dtype)
        out = torch._grouped_mm(inner, self.down.transpose(-2, -1), offs=ends)
        return Combine.apply(out, order, place).view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(m.hidden, eps=1e-5), nn.RMSNorm(m.hidden, eps=1e-5)
        self.qkv = nn.Linear(m.hidden, (m.heads + 2 * m.kv) * D, bias=False)
        self.q_norm = nn.RMSNorm(D, eps=1e-6) if m.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(D, eps=1e-6) if m.qk_norm else nn.Identity()
        self.out = nn.Linear(m.heads * D, m.hidden, bias=False)
        self.mlp = Experts() if m.experts else Dense()

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).split([m.heads * D, m.kv * D, m.kv * D], -1)
        q = rope(self.q_norm(q.view(B, T, m.heads, D)).transpose(1, 2), cos, sin)
        k = rope(self.k_norm(k.view(B, T, m.kv, D)).transpose(1, 2), cos, sin)
        v = v.view(B, T, m.kv, D).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=m.kv != m.heads)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, -1))
        return x + self.mlp(self.norm2(x))


torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
torch.set_default_device("cuda")
embedding = nn.Embedding(m.vocab, m.hidden)
layers = nn.ModuleList(Layer() for _ in range(m.layers))
norm = nn.RMSNorm(m.hidden, eps=1e-5)
head = nn.Linear(m.hidden, m.vocab, bias=False)
if m.tied:
    head.weight = embedding.weight
model = nn.ModuleList([embedding, layers, norm, head])
for p in model.parameters():
    if p.dim() > 1:
        nn.init.normal_(p, std=0.02)
for layer in layers:
    layer.compile()


@torch.compile
def loss_of(x, targets):
    return F.cross_entropy(head(norm(x)).flatten(0, 1).float(), targets.flatten())


angle = torch.outer(torch.arange(T).float(), 1 / 500000 ** (torch.arange(0, D, 2).float() / D))
cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
tokens, targets = torch.randint(0, m.vocab - 300, (B, T)), torch.randint(0, m.vocab - 300, (B, T))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step():
    for _ in range(accumulate):
        x = embedding(tokens)
        for layer in layers:
            x = layer(x, cos, sin)
        loss = loss_of(x, targets)
        (loss / accumulate).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


times = []
with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
    for _ in range(iterations):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
late = sorted(times[iterations // 2:])
seconds = late[(len(late) - 1) // 2]
params = sum(p.numel() for p in model.parameters())
projections = m.hidden * D * (2 * m.heads + 2 * m.kv)
mlp = 3 * m.hidden * m.ffn * max(m.topk, 1)
flops = 6 * (m.layers * (projections + mlp + m.heads * D * T) + m.hidden * m.vocab)
rate = B * T * accumulate / seconds
print(json.dumps(dict(model=name, B=B, T=T, accumulate=accumulate, params=params, ms=round(seconds * 1e3, 1), tok_s=round(rate),
                      tflops=round(flops * rate / 1e12), GiB=round(torch.cuda.max_memory_allocated() / 2**30, 1), loss=round(loss.item(), 3))))
