"""Programs that ``torch_models.py`` measures: of transformers, timm, torchaudio, gpytorch, torch-geometric and plain PyTorch.

Each is a function of a switch for tiny sizes, registered by ``program``; to add one, write another. It is called with the device as
PyTorch's default and seeded weights: nothing is downloaded. It raises ImportError where its package is absent. What it returns has
``title``, ``parameters``, ``outcome()``, the tensors that are compared with float64's, and ``step``, ``exact`` and ``forget``.
"""

import copy
import itertools
import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

MODES = ("eager", "compiled", "graphed")

PROGRAMS = {}
"""Programs by name: ``make(small)``, and the ``modes`` in which each can run."""


def program(*modes):
    """Register a function as a program that runs in some modes, by default in all."""

    def register(make):
        PROGRAMS[make.__name__] = SimpleNamespace(make=make, modes=modes or MODES)
        return make

    return register


def made(name, device, small, seed=0):
    """Return a program with the weights and inputs of a seed."""
    torch.manual_seed(seed)
    with torch.device(device):
        return PROGRAMS[name].make(small)


def in_double(x):
    """Return a tensor of real or complex numbers in double precision, others as they are."""
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x


class Learning:
    """A model with inputs and a loss; its outcome is the gradients of its parameters.

    There is no optimizer: it multiplies no matrices, takes as long in every arm, and would hide what they differ in.

    Parameters
    ----------
    model : called with the inputs; returns the loss, or with ``labels`` a tensor of logits, first if there are several results
    labels : classes of the logits' last axis; the loss is their cross entropy

    Attributes
    ----------
    parameters : the weights, each once
    """

    def __init__(self, title, model, *inputs, labels=None):
        self.title, self.model, self.inputs, self.labels = title, model, inputs, labels
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def loss(self, model, *inputs):
        found = model(*inputs)
        if self.labels is None:
            return found
        logits = found if isinstance(found, torch.Tensor) else found[0]
        labels = self.labels[..., : logits.shape[-2]]  # a program of changing lengths has more
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())

    def step(self, loss):
        """Run forward and backward; return the loss without its autograd graph. The gradients stay in ``grad``."""
        self.forget()
        found = loss(self.model, *self.inputs)
        found.backward()
        return found.detach()

    def outcome(self):
        return [p.grad for p in self.parameters]

    def forget(self):
        self.model.zero_grad(set_to_none=True)

    def exact(self):
        """Return float64's loss and gradients."""
        model = copy.deepcopy(self.model).double()
        loss = self.loss(model, *map(in_double, self.inputs))
        loss.backward()
        return loss.item(), [p.grad for p in model.parameters() if p.requires_grad]


class Computing:
    """A function of tensors without gradients; its outcome is the tensors that it returns."""

    def __init__(self, title, function, *inputs):
        self.title, self.function, self.inputs = title, function, inputs
        self.parameters, self.found = [], []

    def loss(self, function, *inputs):
        return function(*inputs)

    @torch.no_grad
    def step(self, loss):
        """Run the function; return a number that all of it goes into."""
        self.found = list(loss(self.function, *self.inputs))
        return torch.stack([x.norm() for x in self.found]).sum()

    def outcome(self):
        return self.found

    def forget(self):
        self.found = []

    @torch.no_grad
    def exact(self):
        function = copy.deepcopy(self.function).double() if isinstance(self.function, nn.Module) else self.function
        found = list(function(*map(in_double, self.inputs)))
        return sum(x.norm().item() for x in found), found


# --- language and speech ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int

    def __str__(self):
        return f"{self.layers} layers, d {self.width}, {self.batch}×{self.length} tokens"

    def tokens(self):
        return torch.randint(self.vocabulary, (self.batch, self.length))


TINY = Size(2, 64, 4, 211, 2, 16)


class With(nn.Module):
    """A model that is called with more arguments, always the same."""

    def __init__(self, model, **more):
        super().__init__()
        self.model, self.more = model, more

    def forward(self, *inputs):
        return self.model(*inputs, **self.more)


class Block(nn.Module):
    """A transformer layer whose attention is two matrix products around a softmax; ``hidden`` marks scores that do not count."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, hidden):
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        scores = ((q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5).masked_fill(hidden, -math.inf)
        x = x + self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class GPT(nn.Module):
    """GPT-2's layers and initial weights; the output layer's weights are those of the token embedding."""

    def __init__(self, size):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.register_buffer("hidden", torch.ones(size.length, size.length, dtype=torch.bool).triu(1))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions.weight[:length]
        for block in self.blocks:
            x = block(x, self.hidden[:length, :length])
        return F.linear(self.norm(x), self.tokens.weight)


@program()
def gpt(small):
    # GPT-2's 50257 entries rounded up to a multiple of 64, as training scripts do
    size = TINY if small else Size(12, 1024, 16, 50304, 4, 1024)
    return Learning(f"GPT-2-like, {size}", GPT(size), size.tokens(), labels=size.tokens())


@program()
def gpt2(small):
    from transformers import GPT2Config, GPT2LMHeadModel

    size = TINY if small else Size(12, 1024, 16, 50257, 4, 1024)
    config = GPT2Config(
        n_layer=size.layers, n_embd=size.width, n_head=size.heads, vocab_size=size.vocabulary, n_positions=size.length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
        attn_implementation="eager",
    )  # fmt: skip
    # with a mask that is ready; transformers would make one in each step, wait for the device, and make another one in a capture
    mask = torch.full((size.length, size.length), torch.finfo(torch.float32).min).triu(1)[None, None]
    model = With(GPT2LMHeadModel(config), attention_mask=mask)
    return Learning(f"GPT-2 of transformers, {size}", model, size.tokens(), labels=size.tokens())


@program()
def bert(small):
    from transformers import BertConfig, BertForMaskedLM

    size = TINY if small else Size(12, 768, 12, 30522, 32, 128)
    config = BertConfig(
        num_hidden_layers=size.layers, hidden_size=size.width, num_attention_heads=size.heads, intermediate_size=4 * size.width,
        vocab_size=size.vocabulary, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None,
        attn_implementation="eager",
    )  # fmt: skip
    # transformers would make each of these anew in each step, on the host
    model = With(
        BertForMaskedLM(config), attention_mask=torch.zeros(1, 1, size.length, size.length),
        token_type_ids=torch.zeros(1, size.length, dtype=torch.long), position_ids=torch.arange(size.length)[None],
    )  # fmt: skip
    return Learning(f"BERT of transformers, {size}", model, size.tokens(), labels=size.tokens())


def llama_of(size):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=size.layers, hidden_size=size.width, num_attention_heads=size.heads, vocab_size=size.vocabulary,
            intermediate_size=8 * size.width // 3 // 16 * 16, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip


@program()
def llama(small):
    size = TINY if small else Size(8, 1024, 16, 32000, 4, 512)
    return Learning(f"Llama of transformers, {size}", With(llama_of(size), use_cache=False), size.tokens(), labels=size.tokens())


class Generating(nn.Module):
    """``generate`` with a growing cache; the logits of each token. Arms that round in other ways still generate given tokens."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, prompt, tokens):
        def given(found, scores):
            return torch.full_like(scores, -math.inf).scatter(1, tokens[:, found.shape[1] - prompt.shape[1], None], 0.0)

        found = self.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens.shape[1], do_sample=False,
            logits_processor=[given], output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        return found.logits


@program("eager")
def generate(small, batch=1):
    size = TINY if small else Size(12, 1024, 16, 32000, batch, 24)
    prompt = torch.randint(size.vocabulary, (size.batch, 4 if small else 128))
    title = f"generate of transformers' Llama, {size.layers} layers, d {size.width}, {size.length} tokens, batch {size.batch}"
    return Computing(title, Generating(llama_of(size).eval()), prompt, size.tokens())


@program("eager")
def generate32(small):
    return generate(small, batch=32)


@program("eager")
def mixtral(small):
    """Eight experts, each of which gets another number of tokens in each step: the host waits to learn which."""
    from transformers import MixtralConfig, MixtralForCausalLM

    size = TINY if small else Size(4, 512, 8, 32000, 4, 256)
    config = MixtralConfig(
        num_hidden_layers=size.layers, hidden_size=size.width, num_attention_heads=size.heads, num_key_value_heads=size.heads,
        vocab_size=size.vocabulary, intermediate_size=2 * size.width, experts_implementation="eager",
    )  # fmt: skip
    model = With(MixtralForCausalLM(config), use_cache=False)
    return Learning(f"Mixtral of transformers, 8 experts, {size}", model, size.tokens(), labels=size.tokens())


@program()
def t5(small):
    from transformers import T5Config, T5ForConditionalGeneration

    size = TINY if small else Size(6, 512, 8, 32128, 16, 128)
    config = T5Config(
        num_layers=size.layers, d_model=size.width, num_heads=size.heads, d_kv=size.width // size.heads, d_ff=4 * size.width,
        vocab_size=size.vocabulary, dropout_rate=0.0, use_cache=False,
    )  # fmt: skip
    model = With(T5ForConditionalGeneration(config), decoder_input_ids=size.tokens())
    return Learning(f"T5 of transformers, small, {size}", model, size.tokens(), labels=size.tokens())


@program()
def whisper(small):
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    size, frames = (TINY, 40) if small else (Size(6, 512, 8, 51865, 4, 64), 3000)
    config = WhisperConfig(
        encoder_layers=size.layers, decoder_layers=size.layers, d_model=size.width, encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads, encoder_ffn_dim=4 * size.width, decoder_ffn_dim=4 * size.width,
        vocab_size=size.vocabulary, max_source_positions=frames // 2, dropout=0.0, use_cache=False,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    model = With(WhisperForConditionalGeneration(config), decoder_input_ids=size.tokens())
    title = f"Whisper of transformers, {size.layers} + {size.layers} layers, d {size.width}, {size.batch}×{frames} frames"
    return Learning(title, model, torch.randn(size.batch, config.num_mel_bins, frames), labels=size.tokens())


@program("eager")
def conformer(small):
    """torchaudio's Conformer reads lengths back in each step."""
    from torchaudio.models import Conformer

    size = TINY if small else Size(8, 512, 8, 512, 16, 256)
    model = Conformer(size.width, size.heads, 4 * size.width, size.layers, 31)
    frames, lengths = torch.randn(size.batch, size.length, size.width), torch.full((size.batch,), size.length)
    labels = torch.randint(size.width, (size.batch, size.length))
    title = f"Conformer of torchaudio, {size.layers} layers, d {size.width}, {size.batch}×{size.length} frames"
    return Learning(title, model, frames, lengths, labels=labels)


@program()
def transformer(small, length=64):
    size = TINY if small else Size(3, 512, 8, 512, 32, length)
    model = nn.Transformer(size.width, size.heads, size.layers, size.layers, 4 * size.width, dropout=0.0, batch_first=True)
    source, target = torch.randn(2, size.batch, size.length, size.width).unbind()
    title = f"nn.Transformer, {size.layers} + {size.layers} layers, d {size.width}, {size.batch}×{size.length} tokens"
    return Learning(title, model, source, target, labels=torch.randint(size.width, (size.batch, size.length)))


@program()
def transformer128(small):
    return transformer(small, length=128)


@program()
def encoder(small):
    size = TINY if small else Size(4, 512, 8, 512, 16, 256)
    layer = nn.TransformerEncoderLayer(size.width, size.heads, 4 * size.width, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, size.layers), torch.randn(size.batch, size.length, size.width)
    return Learning(f"nn.TransformerEncoder, {size}", model, x, labels=torch.randint(size.width, (size.batch, size.length)))


@program("eager")
def lstm(small):
    width, batch, length = (16, 2, 5) if small else (512, 64, 128)
    model = nn.LSTM(width, width, 2, batch_first=True)
    x, labels = torch.randn(batch, length, width), torch.randint(width, (batch, length))
    return Learning(f"nn.LSTM, 2 layers, d {width}, {batch}×{length} steps", model, x, labels=labels)


# --- images -----------------------------------------------------------------------------------------------------------------------


def images(small, title, name, count, side=32, **tiny):
    """Return a model of timm that classifies images; ``side`` and ``tiny`` are its sizes for tests."""
    import timm

    model = timm.create_model(name, drop_path_rate=0.0, **(tiny if small else {}))
    count, side = (2, side) if small else (count, 224)
    labels = torch.randint(1000, (count,))
    return Learning(f"{title}, {count} images of {side}²", model, torch.randn(count, 3, side, side), labels=labels)


@program()
def swin(small):
    tiny = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2)}
    return images(small, "Swin transformer of timm, tiny", "swin_tiny_patch4_window7_224", 32, 64, **tiny)


@program()
def convnext(small):
    return images(small, "ConvNeXt of timm, tiny", "convnext_tiny", 32, depths=(1, 1, 1, 1), dims=(8, 16, 32, 64))


@program()
def mixer(small):
    return images(small, "MLP-Mixer of timm", "mixer_s32_224" if small else "mixer_b16_224", 32, img_size=32)


@program()
def vit_small(small):
    return images(small, "Small vision transformer of timm", "vit_small_patch16_224", 64, img_size=32, depth=2, embed_dim=48)


@program()
def vit(small):
    return images(small, "Vision transformer of timm, base", "vit_base_patch16_224", 64, img_size=32, depth=2, embed_dim=48)


class NeRF(nn.Module):
    """A radiance field of encoded places, with its input again in the middle, and the rendering of volumes along rays."""

    def __init__(self, layers, width, inputs):
        super().__init__()
        self.again = layers // 2
        wide = [inputs, *[width] * (layers - 1)]
        wide[self.again] += inputs
        self.layers = nn.ModuleList(nn.Linear(n, width) for n in wide)
        self.colour, self.density = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, places, steps, colours):
        x = places
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([x, places], -1) if i == self.again else x))
        depths = F.softplus(self.density(x)) * steps
        through = depths.cumsum(1)
        seen = ((through - depths).neg().exp() - through.neg().exp()) * self.colour(x).sigmoid()
        return (seen.sum(1) - colours).square().mean()


@program()
def nerf(small):
    """Rays from a sphere towards its middle, with random colours: gradients are differences, and show what is lost in sums.

    Places are encoded once, in float64: sines of rounded angles would be further off than any product.
    """
    layers, width, rays, samples = (3, 32, 64, 4) if small else (8, 256, 65536, 1)
    eyes = F.normalize(torch.randn(rays, 1, 3, dtype=torch.float64), dim=-1)
    ways = F.normalize(0.2 * torch.randn_like(eyes) - eyes, dim=-1)
    length = 1.0 / samples
    places = eyes + ways * (0.5 + length * (torch.arange(samples)[:, None] + torch.rand(rays, samples, 1)))
    angles = (places[..., None] * math.pi * 2.0 ** torch.arange(10)).flatten(-2)
    inputs = torch.cat([places, angles.sin(), angles.cos()], -1).float()
    model = NeRF(layers, width, inputs.shape[-1])
    title = f"NeRF, {layers} layers, d {width}, {rays} rays of {samples} sample{'s' * (samples > 1)}"
    return Learning(title, model, inputs, torch.full((rays, samples, 1), length), torch.rand(rays, 3))


# --- points, graphs and equations -------------------------------------------------------------------------------------------------


class Equivariant(nn.Module):
    """A graph network whose outcome turns with its input (EGNN's equations): messages of distances, places moved along edges."""

    def __init__(self, layers, width):
        super().__init__()
        self.embed, self.last = nn.Linear(16, width), nn.Linear(width, 1)
        self.messages = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()) for _ in range(layers)
        )
        self.moves = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)) for _ in range(layers))
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(layers)
        )

    def forward(self, features, places, source, target):
        x, edges = self.embed(features), len(source) / len(features)
        for message, move, update in zip(self.messages, self.moves, self.updates, strict=True):
            along = places[source] - places[target]
            sent = message(torch.cat([x[source], x[target], along.square().sum(1, keepdim=True)], 1))
            places = places + torch.zeros_like(places).index_add(0, target, along * torch.tanh(move(sent))) / edges
            x = x + update(torch.cat([x, torch.zeros_like(x).index_add(0, target, sent) / edges], 1))
        return self.last(x).mean() + places.square().mean()


@program()
def graph(small):
    layers, width, nodes, edges = (2, 16, 40, 200) if small else (6, 256, 16384, 262144)
    inputs = torch.randn(nodes, 16), torch.randn(nodes, 3), *torch.randint(nodes, (2, edges)).unbind()
    return Learning(f"Equivariant graph network, {layers} layers, d {width}, {edges} edges", Equivariant(layers, width), *inputs)


@program()
def sage(small):
    from torch_geometric.nn import GraphSAGE

    width, nodes, edges = (16, 40, 200) if small else (256, 50000, 500000)
    inputs, labels = (torch.randn(nodes, width), torch.randint(nodes, (2, edges))), torch.randint(width, (nodes,))
    title = f"GraphSAGE of torch-geometric, 3 layers, d {width}, {nodes} nodes"
    return Learning(title, GraphSAGE(width, width, 3, width), *inputs, labels=labels)


class Burgers(nn.Module):
    """The residual of Burgers' equation at points (x, t): derivatives of a network's result by its input, and then gradients."""

    def __init__(self, layers, width):
        super().__init__()
        wide = [2, *[width] * layers]
        hidden = (part for n, m in itertools.pairwise(wide) for part in (nn.Linear(n, m), nn.Tanh()))
        self.net = nn.Sequential(*hidden, nn.Linear(width, 1))

    def forward(self, points):
        points = points.detach().requires_grad_()
        u = self.net(points)
        first = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)[0][:, 0]
        residual = first[:, 1] + u[:, 0] * first[:, 0] - 0.01 * second
        return residual.square().mean() + (u[:, 0] + torch.sin(math.pi * points[:, 0])).square().mean()


@program("eager", "graphed")  # torch.compile has no second derivatives
def pinn(small, layers=6, width=128):
    layers, width, points = (2, 16, 50) if small else (layers, width, 32768)
    title = f"PINN of second order, {layers} layers, d {width}, {points} points"
    return Learning(title, Burgers(layers, width), 2 * torch.rand(points, 2) - 1)


@program("eager", "graphed")
def pinn512(small):
    return pinn(small, 8, 512)


class FNO(nn.Module):
    """A Fourier neural operator in two dimensions; its spectral weights are complex, and are stored as pairs of real numbers."""

    def __init__(self, layers, width, kept):
        super().__init__()
        self.kept = kept
        self.lift, self.last = nn.Linear(3, width), nn.Linear(width, 1)
        self.local = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.spectral = nn.ParameterList(torch.randn(width, width, kept, kept, 2) / width for _ in range(layers))

    def forward(self, grid, wanted):
        x = self.lift(grid)
        for local, weights in zip(self.local, self.spectral, strict=True):
            modes = torch.fft.rfft2(x, dim=(1, 2))
            low = torch.einsum("bxyi,ioxy->bxyo", modes[:, : self.kept, : self.kept], torch.view_as_complex(weights))
            pad = (0, 0, 0, modes.shape[2] - self.kept, 0, modes.shape[1] - self.kept)
            x = F.gelu(torch.fft.irfft2(F.pad(low, pad), s=x.shape[1:3], dim=(1, 2)) + local(x))
        return (self.last(x) - wanted).square().mean()


@program("eager", "graphed")  # torch.compile leaves complex numbers to eager kernels
def fno(small):
    layers, width, kept, batch, side = (2, 8, 3, 2, 8) if small else (4, 64, 16, 16, 64)
    title = f"Fourier neural operator, {layers} layers, d {width}, {batch}×{side}×{side}"
    return Learning(title, FNO(layers, width, kept), torch.randn(batch, side, side, 3), torch.randn(batch, side, side, 1))


@program("eager")
def gp(small):
    """A step of an exact Gaussian process. Its time goes into cuSOLVER's Cholesky decomposition, no product that toprung sees."""
    import gpytorch

    points, dimensions = (60, 3) if small else (8192, 16)

    class Process(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=dimensions))
            self.mean, self.noise = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.tensor(0.5))

        def forward(self, x, y):
            covariance = self.kernel(x).add_diagonal(self.noise)
            with gpytorch.settings.max_cholesky_size(1 << 20):
                return -gpytorch.distributions.MultivariateNormal(self.mean.expand(len(x)), covariance).log_prob(y) / len(x)

    x = torch.rand(points, dimensions)
    y = torch.sin(3 * x.sum(1)) + 0.1 * torch.randn(points)
    return Learning(f"Exact Gaussian process of gpytorch, {points} points", Process(), x, y)


# --- changing shapes, and small products ------------------------------------------------------------------------------------------


class Changing(nn.Module):
    """A model whose input has another length in each step, along an axis; no result of the first part depends on the rest."""

    def __init__(self, model, lengths, axis):
        super().__init__()
        self.model, self.lengths, self.axis, self.step = model, lengths, axis, 0

    def forward(self, x):
        self.step += 1
        return self.model(x.narrow(self.axis, 0, self.lengths[self.step % len(self.lengths)]))


def changing(title, model, x, labels, lengths, axis):
    """Return a program of changing lengths. Labels behind the least are of no class and count for nothing: gradients stay."""
    labels.narrow(axis, min(lengths), labels.shape[axis] - min(lengths)).fill_(-100)
    return Learning(title, Changing(model, lengths, axis), x, labels=labels)


def perceptron(layers, width):
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))


@program("eager")
def fresh(small):
    """A batch size that no step before had."""
    layers, width, lengths = (2, 16, range(8, 12)) if small else (6, 1024, range(2048, 8192))
    labels = torch.randint(width, (lengths[-1],))
    title = f"Perceptron, {layers} layers, d {width}, a new batch size in each step"
    return changing(title, perceptron(layers, width), torch.randn(lengths[-1], width), labels, lengths, 0)


@program("eager")
def ragged(small):
    """Batches of texts, each batch of another length, of which there are sixteen."""
    size = TINY if small else Size(6, 512, 8, 32000, 8, 512)
    lengths = [size.length * (16 + 7 * i % 16 + 1) // 32 for i in range(16)]
    title = f"GPT-2-like, {size}, of 16 lengths in turn"
    return changing(title, GPT(size), size.tokens(), size.tokens(), lengths, 1)


@program()
def mlp(small):
    layers, width, rows = (2, 16, 8) if small else (8, 128, 1024)
    x, labels = torch.randn(rows, width), torch.randint(width, (rows,))
    return Learning(f"Perceptron, {layers} layers, d {width}, {rows} rows", perceptron(layers, width), x, labels=labels)


@program()
def bmm(small):
    batch = 50 if small else 100000
    return Computing(f"bmm, {batch}×3×3", lambda a, b: (a @ b,), *torch.randn(2, batch, 3, 3).unbind())


# --- linear algebra ---------------------------------------------------------------------------------------------------------------


@program("eager")
def pca(small):
    """``torch.pca_lowrank``; its QR decompositions are cuSOLVER's and wait for the device, so that no graph captures them."""
    rows, cols, rank = (300, 60, 8) if small else (65536, 4096, 128)
    low = torch.randn(rows, rank) * torch.logspace(0, -1, rank)
    data = low @ torch.randn(rank, cols) + 1e-3 * torch.randn(rows, cols)

    def values(x):
        torch.manual_seed(1)
        return (torch.pca_lowrank(x, q=rank + rank // 4, niter=2)[1][:rank],)

    return Computing(f"pca_lowrank, {rows}×{cols}, rank {rank}", values, data)


@program()
def muon(small):
    """The Newton–Schulz iteration of the Muon optimizer on the gradients of a transformer's layer, in fp32."""
    width = 32 if small else 2048
    shapes = ((width, width),) * 4 + ((width, 4 * width),) * 2

    def orthogonal(*given):
        found = []
        for g in given:
            x = g / (g.norm() + 1e-7)
            for _ in range(5):
                gram = x @ x.T
                x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
            found.append(x)
        return found

    title = f"Muon's Newton–Schulz step, {len(shapes)} matrices, d {width}"
    return Computing(title, orthogonal, *(torch.randn(shape) for shape in shapes))


@program()
def knn(small):
    rows, width = (40, 16) if small else (20000, 768)

    def nearest(x):
        squares = x.square().sum(1)
        return ((squares[:, None] + squares - 2 * (x @ x.T)).topk(11, largest=False).values[:, 1:],)

    return Computing(f"Nearest neighbours of {rows} points, d {width}", nearest, torch.randn(rows, width))


@program()
def cdist(small):
    rows, width = (40, 16) if small else (8192, 512)
    return Computing(f"cdist, {rows}×{rows}×{width}", lambda x, y: (torch.cdist(x, y),), *torch.randn(2, rows, width).unbind())


@program("eager")
def matrix_exp(small):
    width = 24 if small else 2048
    return Computing(f"matrix_exp, {width}", lambda x: (torch.matrix_exp(x),), torch.randn(width, width) / width**0.5)


@program("eager", "graphed")
def complex64(small):
    width = 24 if small else 2048
    a, b = torch.randn(2, width, width, dtype=torch.complex64).unbind()
    return Computing(f"complex64, {width}³", lambda a, b: (a @ b,), a, b)


@program("eager")
def solvers(small):
    """Decompositions, whose products are cuSOLVER's own."""
    width = 24 if small else 4096
    x = torch.randn(width, width)
    symmetric = x @ x.T / width + torch.eye(width)

    def decomposed(x):
        return torch.linalg.cholesky(x), torch.linalg.eigvalsh(x[: width // 4, : width // 4])

    return Computing(f"cholesky, {width}, and eigvalsh, {width // 4}", decomposed, symmetric)
