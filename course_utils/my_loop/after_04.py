def train(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        loss = loss_fn(model, batch) / n
        loss.backward()
        if number % n == 0:
            optimizer.step()
            optimizer.zero_grad()
