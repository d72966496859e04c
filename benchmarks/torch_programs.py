"""Programs for ``torch_models.py`` that are no language models: images, speech, graphs, low rank, an optimizer, a Gaussian process.

Each is built by a function of the device and a switch for tiny sizes, and has what a ``Training`` of ``torch_models.py`` has:
``title``, ``names`` and ``outcome()``, the tensors that are compared with float64's, ``step``, ``exact`` and ``forget``.

It keeps a loop of its own, for what is timed are whole PyTorch programs.
"""

import copy
import math
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import nn


class Learning:
    """A model with inputs and a loss; its outcome is the gradients of its parameters.

    There is no optimizer: it multiplies no matrices, takes as long in every arm, and would hide what they differ in.

    Attributes
    ----------
    parameters : the weights, each once
    modes : in which it can be run; all if empty
    wrong : error from which on an arm is not timed, by its name; those of ``torch_models.py`` if empty
    """

    modes = ()
    wrong = MappingProxyType({})

    def __init__(self, title, model, inputs):
        self.title, self.model, self.inputs = title, model, inputs
        self.names, self.parameters = zip(*model.named_parameters(), strict=True)

    def loss(self, model, *inputs):
        """Return the model's own loss."""
        return model(*inputs)

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
        loss = self.loss(model, *(x.double() if x.is_floating_point() else x for x in self.inputs))
        loss.backward()
        return loss.item(), [p.grad for p in model.parameters()]


class Computing:
    """A function of tensors without gradients; its outcome is the tensors that it returns."""

    modes = ()
    wrong = MappingProxyType({})

    def __init__(self, title, function, inputs, names, modes=()):
        self.title, self.function, self.inputs, self.names, self.modes = title, function, inputs, names, modes
        self.parameters, self.found = [], [None] * len(names)

    def loss(self, function, *inputs):
        return function(*inputs)

    def step(self, loss):
        """Run the function; return a number that all of it goes into."""
        self.found = list(loss(self.function, *self.inputs))
        return torch.stack([x.norm() for x in self.found]).sum()

    def outcome(self):
        return self.found

    def forget(self):
        self.found = [None] * len(self.names)

    def exact(self):
        found = list(self.function(*(x.double() for x in self.inputs)))
        return sum(x.norm().item() for x in found), found


class Block(nn.Module):
    """A transformer layer whose attention is two matrix products around a softmax; ``hidden`` marks scores that do not count."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, hidden=None):
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        weights = torch.softmax(scores, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class VisionTransformer(nn.Module):
    """ViT's layers over patches of 16×16 and a token for the class; attention is two products around a softmax."""

    def __init__(self, layers, width, heads, side, classes):
        super().__init__()
        self.patches = nn.Linear(3 * 16 * 16, width)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (side // 16) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images, labels):
        x = self.patches(F.unfold(images, 16, stride=16).transpose(1, 2))
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return F.cross_entropy(self.head(self.norm(self.layers(x))[:, 0]), labels)


def vit(device, small):
    layers, width, heads, side, images, classes = (2, 32, 2, 32, 3, 10) if small else (12, 768, 12, 224, 64, 1000)
    model = VisionTransformer(layers, width, heads, side, classes).to(device)
    inputs = torch.randn(images, 3, side, side, device=device), torch.randint(classes, (images,), device=device)
    return Learning(f"Vision transformer, {layers} layers, d {width}, {images} images of {side}²", model, inputs)


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


def graph(device, small):
    layers, width, nodes, edges = (2, 16, 40, 200) if small else (6, 256, 16384, 262144)
    model = Equivariant(layers, width).to(device)
    inputs = (
        torch.randn(nodes, 16, device=device), torch.randn(nodes, 3, device=device),
        *torch.randint(nodes, (2, edges), device=device).unbind(),
    )  # fmt: skip
    return Learning(f"Equivariant graph network, {layers} layers, d {width}, {edges} edges", model, inputs)


def pca(device, small):
    """``torch.pca_lowrank``; its QR decompositions are cuSOLVER's and wait for the device, so that no graph captures them."""
    rows, cols, rank = (300, 60, 8) if small else (65536, 4096, 128)
    low = torch.randn(rows, rank, device=device) * torch.logspace(0, -1, rank, device=device)
    data = low @ torch.randn(rank, cols, device=device) + 1e-3 * torch.randn(rows, cols, device=device)

    def values(x):
        torch.manual_seed(1)
        return (torch.pca_lowrank(x, q=rank + rank // 4, niter=2)[1][:rank],)

    return Computing(f"pca_lowrank, {rows}×{cols}, rank {rank}", values, (data,), ("singular values",), ("eager",))


def muon(device, small):
    """The Newton–Schulz iteration of the Muon optimizer on the gradients of a transformer's layer, in fp32."""
    width = 32 if small else 2048
    shapes = ((width, width),) * 4 + ((width, 4 * width),) * 2
    gradients = [torch.randn(shape, device=device) for shape in shapes]

    def orthogonal(*given):
        found = []
        for g in given:
            x = g / (g.norm() + 1e-7)
            for _ in range(5):
                gram = x @ x.T
                x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
            found.append(x)
        return found

    names = [f"{m}×{n} {i}" for i, (m, n) in enumerate(shapes)]
    return Computing(f"Muon's Newton–Schulz step, {len(shapes)} matrices, d {width}", orthogonal, gradients, names)


def gp(device, small):
    """A step of gpytorch's exact Gaussian process; raise ImportError where that is absent.

    Its time goes into cuSOLVER's Cholesky decomposition, which is no product that toprung sees.
    """
    import gpytorch

    points, dimensions = (60, 3) if small else (8192, 16)

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x, y):
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=dimensions))

        def forward(self, *given):
            if len(given) == 1:  # the process itself
                return gpytorch.distributions.MultivariateNormal(self.mean_module(given[0]), self.covar_module(given[0]))
            raise AssertionError

    class Marginal(nn.Module):
        def __init__(self, x, y):
            super().__init__()
            self.process = Process(x, y)
            self.process.train()

        def forward(self, x, y):
            self.process.set_train_data(x, y, strict=False)
            with gpytorch.settings.max_cholesky_size(1 << 20):
                found = gpytorch.mlls.ExactMarginalLogLikelihood(self.process.likelihood, self.process)
                return -found(self.process(x), y)

    x = torch.rand(points, dimensions, device=device)
    y = torch.sin(3 * x.sum(1)) + 0.1 * torch.randn(points, device=device)
    made = Learning(f"Exact Gaussian process of gpytorch, {points} points", Marginal(x, y).to(device), (x, y))
    made.modes = ("eager",)
    made.wrong = dict.fromkeys(("fp32", "tf32", "toprung"), 0.1)  # the decomposition loses digits whoever multiplies
    return made


class Classifying(nn.Module):
    """A model with the cross entropy of its outcome's last axis."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, labels, *inputs):
        found = self.model(*inputs)
        logits = found[0] if isinstance(found, tuple) else found
        return F.cross_entropy(logits.flatten(0, -2), labels)


def swin(device, small):
    """timm's Swin transformer, of kernels so small that an eager step waits for the host; raise ImportError without timm."""
    from timm.models.swin_transformer import SwinTransformer

    tiny = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2)}
    images, side, sizes = (2, 64, tiny) if small else (32, 224, {})  # without sizes it is timm's swin_tiny
    inputs = torch.randint(1000, (images,), device=device), torch.randn(images, 3, side, side, device=device)
    model = Classifying(SwinTransformer(drop_path_rate=0.0, **sizes)).to(device)
    return Learning(f"Swin transformer of timm, tiny, {images} images of {side}²", model, inputs)


def conformer(device, small):
    """torchaudio's Conformer, which waits for the host, too, and reads lengths back; raise ImportError without torchaudio."""
    from torchaudio.models import Conformer

    width, heads, layers, batch, length = (16, 2, 1, 2, 20) if small else (512, 8, 8, 16, 256)
    inputs = (
        torch.randint(width, (batch * length,), device=device), torch.randn(batch, length, width, device=device),
        torch.full((batch,), length, device=device),
    )  # fmt: skip
    model = Classifying(Conformer(width, heads, 4 * width, layers, 31)).to(device)
    made = Learning(f"Conformer of torchaudio, {layers} layers, d {width}, {batch}×{length} frames", model, inputs)
    made.modes = ("eager",)
    made.wrong = dict.fromkeys(("fp32", "toprung"), 1e-2)  # by PyTorch's default convolutions run in TF32, in each arm
    return made


PROGRAMS = {"vit": vit, "swin": swin, "conformer": conformer, "graph": graph, "pca": pca, "muon": muon, "gp": gp}
