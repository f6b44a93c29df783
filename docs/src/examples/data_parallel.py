"""Data-parallel training: each rank takes its part of every batch, and MPI adds the gradients up.

    mpirun -n 4 python data_parallel.py

A line that ends in "# MPI" is one that the same program for one process does not have: without these lines the program
runs without MPI, and prints the same losses but for the order in which numbers are added. Tensors go to MPI as they
are, from the memory of a GPU where there is one. It takes PyTorch and mpi4py.
"""

import torch
from torch import nn
from mpi4py import MPI  # MPI

EPOCHS, SAMPLES, BATCH, FEATURES = 10, 4096, 64, 8

comm = MPI.COMM_WORLD  # MPI

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if device.type == "cuda":  # MPI
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)  # MPI
    torch.cuda.set_device(here.rank % torch.cuda.device_count())  # MPI

# What is to be learnt: a smooth function of some features. All ranks make the same samples.
seeded = torch.Generator().manual_seed(1)
inputs = torch.randn(SAMPLES, FEATURES, generator=seeded)
directions = torch.randn(FEATURES, 2, generator=seeded) / FEATURES**0.5
targets = torch.sin(inputs @ directions).sum(1, keepdim=True)
inputs, targets = inputs.to(device), targets.to(device)

# Each rank draws other weights. All go on with those of rank 0, below.
torch.manual_seed(2)
torch.manual_seed(2 + comm.rank)  # MPI
model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for weights in model.parameters():  # MPI
    comm.Bcast(weights.data)  # MPI

# The gradients lie in one tensor, so that one call adds them all.
gradients = torch.zeros(sum(weights.numel() for weights in model.parameters()), device=device)  # MPI
parts = gradients.split([weights.numel() for weights in model.parameters()])  # MPI
for weights, part in zip(model.parameters(), parts):  # MPI
    weights.grad = part.view_as(weights)  # MPI

for epoch in range(EPOCHS):
    total = torch.zeros(1, device=device)
    for batch in torch.randperm(SAMPLES, generator=seeded).split(BATCH):
        size = len(batch)
        batch = batch[comm.rank :: comm.size]  # MPI
        optimizer.zero_grad(set_to_none=False)
        # Divided by the length of the whole batch, so that the sum over all ranks is the mean.
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch], reduction="sum") / size
        loss.backward()
        if device.type == "cuda":  # MPI
            torch.cuda.synchronize()  # MPI
        comm.Allreduce(MPI.IN_PLACE, gradients)  # MPI
        optimizer.step()
        total += loss.detach()
    comm.Allreduce(MPI.IN_PLACE, total)  # MPI
    if comm.rank != 0:  # MPI
        continue  # MPI
    print(f"epoch {epoch}  loss {total.item() * BATCH / SAMPLES:.6e}")
