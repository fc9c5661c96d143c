# SPDX-License-Identifier: Apache-2.0
GGUF_MODELS = {}
GGUF_ADAPTERS = {}
