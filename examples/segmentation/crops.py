"""Batches of random crops of rescaled and mirrored images, with their masks."""

import keras
import numpy as np
from PIL import Image, ImageEnhance


class Crops(keras.utils.PyDataset):
    """Full batches of normalized crops of a model's input size, and of their masks.

    As in the public training of UperNet: the shorter side of an image is resized to that of the
    crop times a random factor, and the first of ten crops is used in which no class has more than
    75 % of the labeled pixels. Smaller images are padded with the mean color and ignored labels
    (255). `jitter` is the greatest change of brightness, contrast and saturation, as a factor.
    Batch i of epoch e depends on (seed, e, i) alone, so that `kv.fit` can resume bit for bit.
    """

    def __init__(self, pairs, model, batch_size=16, scales=(0.5, 2.0), jitter=0.0, seed=0):
        super().__init__()
        self.pairs, self.size, self.batch_size = pairs, model.input_shape[1:3], batch_size
        self.mean, self.std = np.float32([model.preprocessing.mean, model.preprocessing.std])
        self.scales, self.jitter, self.seed, self.epoch = scales, jitter, seed, 0

    def __len__(self):
        return len(self.pairs) // self.batch_size

    def on_epoch_end(self):
        self.epoch += 1

    def set_epoch(self, epoch):
        """Called by `kv.fit`."""
        self.epoch = epoch

    def __getitem__(self, index):
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.pairs))
        random = np.random.default_rng((self.seed, self.epoch, index + 1))
        chosen = order[index * self.batch_size :][: self.batch_size]
        images, masks = zip(*(self.crop(*self.pairs[i], random) for i in chosen), strict=True)
        return np.stack(images), np.stack(masks)

    def crop(self, image, mask, random):
        """Return a random crop of an image and its mask."""
        height, width = self.size
        ratio = random.uniform(*self.scales) * min(self.size) / min(mask.shape)
        rows, columns = (max(1, round(side * ratio)) for side in mask.shape)
        image = np.asarray(Image.fromarray(image).resize((columns, rows), Image.BILINEAR))
        # The nearest pixels, as labels can't be interpolated.
        nearest = (
            ((np.arange(new) + 0.5) * old / new).astype(int)
            for old, new in zip(mask.shape, (rows, columns), strict=True)
        )
        mask = mask[np.ix_(*nearest)]
        for _ in range(10):
            top, left = (
                random.integers(max(side - crop, 0) + 1)
                for side, crop in zip((rows, columns), self.size, strict=True)
            )
            window = slice(top, top + height), slice(left, left + width)
            labels, counts = np.unique(mask[window], return_counts=True)
            counts = counts[labels != 255]
            if len(counts) and counts.max() < 0.75 * counts.sum():
                break
        image, mask = image[window], mask[window]
        if random.random() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        if self.jitter:
            image = self.change_colors(image, random)
        border = [(0, side - length) for side, length in zip(self.size, mask.shape, strict=True)]
        image = np.pad((image / np.float32(255) - self.mean) / self.std, [*border, (0, 0)])
        return image, np.pad(mask, border, constant_values=255)

    def change_colors(self, image, random):
        """Change brightness, contrast and saturation in random order."""
        picture = Image.fromarray(np.ascontiguousarray(image))
        enhancers = ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color
        factors = random.uniform(1 - self.jitter, 1 + self.jitter, len(enhancers))
        for index in random.permutation(len(enhancers)):
            picture = enhancers[index](picture).enhance(factors[index])
        return np.asarray(picture)
