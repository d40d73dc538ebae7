"""BERT with any attention of the package: pre-training and GLUE (Refiner, Section 4.5)."""

from keras_vitx.language.embedding import TextEmbedding
from keras_vitx.language.finetuning import FineTuned, finetune, score
from keras_vitx.language.glue import TASKS, Examples, Task, read_folder, read_tfds, read_tsv
from keras_vitx.language.network import BERT, BERT_Small, classifier
from keras_vitx.language.optimizer import WarmupLinear, adamw
from keras_vitx.language.pretraining import MaskedLanguageModel, MaskedTexts, pretrain, read_text
from keras_vitx.language.tokens import encode, load_tokenizer, train_tokenizer
