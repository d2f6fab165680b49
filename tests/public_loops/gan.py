"""A GAN whose generator's loss leaves gradients in the discriminator, zeroed as Lightning once did.

https://github.com/Lightning-AI/pytorch-lightning/issues/591
"""

import torch
from torch import nn


class GAN:
    def __init__(self):
        self.generator, self.discriminator = nn.Linear(2, 3), nn.Linear(3, 1)

    def adversarial_loss(self, y_hat, y):
        return nn.functional.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, imgs, optimizer_idx):
        z = torch.randn(imgs.shape[0], 2)
        valid, fake = torch.ones(imgs.size(0), 1), torch.zeros(imgs.size(0), 1)
        if optimizer_idx == 0:
            return self.adversarial_loss(self.discriminator(self.generator(z)), valid)
        real_loss = self.adversarial_loss(self.discriminator(imgs), valid)
        fake_loss = self.adversarial_loss(self.discriminator(self.generator(z).detach()), fake)
        return (real_loss + fake_loss) / 2

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        opt_d = torch.optim.SGD(self.discriminator.parameters(), lr=2e-4)
        return [opt_g, opt_d]


torch.manual_seed(0)
gan = GAN()
optimizers = gan.configure_optimizers()
for _ in range(2):
    for imgs in torch.randn(8, 4, 3):
        for idx, optimizer in enumerate(optimizers):
            loss = gan.training_step(imgs, idx)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
