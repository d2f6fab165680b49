def train(model, batches, loss_fn, optimizer):
    optimizer.zero_grad()
    for batch in batches:
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
