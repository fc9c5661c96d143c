# SPDX-License-Identifier: Apache-2.0
"""The reference model for one case: transformers with PEFT, float32, eager attention."""
import torch

from adapter_specs import SPECS as ADAPTER_SPECS, TWINS
from common import ADAPTERS, MODELS, load_model
from gguf_specs import GGUF_ADAPTERS, GGUF_MODELS
from model_specs import MAX_MODEL_LEN
from quant_specs import QUANT_MODELS


def base_model(model, adapters):
    if model in GGUF_MODELS:
        from make_gguf import reference_model

        return reference_model(model)
    if model in QUANT_MODELS:
        from make_quantised import reference_model

        return reference_model(model)
    loaded = load_model(MODELS / model, MAX_MODEL_LEN.get(model, 0))
    for name, _ in adapters:
        vocab = ADAPTER_SPECS.get(TWINS.get(name, name), {}).get("vocab")
        if vocab:
            loaded.resize_token_embeddings(vocab, mean_resizing=False)
    return loaded


def apply(loaded, adapters, folders):
    """All adapters of the request active at once, each delta times its request scale."""
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    names = [f"a{i}" for i in range(len(adapters))]
    model = PeftModel.from_pretrained(loaded, folders[0], adapter_name=names[0])
    for name, folder in zip(names[1:], folders[1:]):
        model.load_adapter(folder, adapter_name=name)
    if len(names) > 1:
        model.base_model.set_adapter(names)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name, (_, scale) in zip(names, adapters):
                if name in module.scaling:
                    module.scaling[name] *= scale
    return model.eval()


class Reference:
    def __init__(self, model, adapters, reference=None):
        self.invocation = None
        loaded = base_model(model, adapters)
        if not adapters:
            self.model = loaded
            return
        sources = reference or [GGUF_ADAPTERS.get(name, {}).get("source", name) for name, _ in adapters]
        self.model = apply(loaded, adapters, [ADAPTERS / source for source in sources])
        for source in sources:
            self.invocation = self.invocation or ADAPTER_SPECS.get(source, {}).get("alora_invocation_tokens")

    def last_invocation(self, prompt):
        """Where the last occurrence of the invocation tokens starts in the prompt, or None."""
        if self.invocation is None:
            return None
        n = len(self.invocation)
        starts = [i for i in range(len(prompt) - n + 1) if prompt[i:i + n] == self.invocation]
        return starts[-1] if starts else None

    def extra(self, ids, start):
        if self.invocation is None:
            return {}
        return {"alora_offsets": [None if start is None else len(ids) - start]}

    def logits(self, ids, start=None):
        return self.model(input_ids=torch.tensor([ids]), use_cache=False, **self.extra(ids, start)).logits[0]

    def hidden(self, ids):
        """After the final norm, [tokens, hidden]."""
        causal = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        return causal.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]

    def greedy(self, prompt, steps, start=None):
        """Ids chosen (ties to the lowest) and the logits each was chosen from; no cache, every step from scratch."""
        ids, rows = list(prompt), []
        for _ in range(steps):
            row = self.logits(ids, start)[-1]
            rows.append(row)
            ids.append(int(row.argmax()))
        return ids[len(prompt):], torch.stack(rows)
