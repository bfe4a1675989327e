"""Code that a cell calls and whose author never heard of tcompile: a training loop."""

import torch.nn.functional as F


def train(model, optimizer, data):
    losses = []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
