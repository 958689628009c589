"""Which keyword arguments of `timm.create_model` a command line or a file may set.

Most that `create_model` takes is no architecture: names of files that it unpickles
(`checkpoint_path`), downloads (`pretrained_cfg`), other models, switches. Model files, caches and
records come from anywhere, so what they may set is a list: the constructor arguments of timm's
models whose values are plain. The values are bounded too, because a small file could ask for a
large network; how large it may be beside its weights is checked in `network_size`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clinit.errors import BackboneError

MAX_TEXT = 4096
"""Characters of arguments that are written as text."""
MAX_INTEGER = 2**16
MAX_CLASSES = 2**22
"""Largest `num_classes`: every other integer is a width, a depth or a size in pixels."""
MAX_FLOAT = 1e6
MAX_LENGTH, MAX_NESTING = 128, 3
"""Of a list, and of lists within lists."""
_WORD = re.compile(r"[A-Za-z0-9_+-]{0,40}")
"""Strings choose a layer, a mode or a kind of pooling. No path and no address is one of these."""

# From the signatures of timm 1.0.31, without those that take classes, functions or modules, that
# turn the classifier into something else, or that have to do with devices or with files.
# `pretrained_window_sizes` of Swin V2 is no file, whatever its name: the windows, as integers,
# that its position biases were trained with.
_NAMES = """
    aa_layer aa_stem_only abs_win_pos_embed act_layer always_partition attn attn_act_layer
    attn_drop_rate attn_gated attn_groups attn_head_dim_reduction attn_layer attn_mlp attn_mlp_ratio
    attn_only_layer_scale attn_pool_mlp_ratio attn_pool_num_heads attn_ratio attn_stage attn_type
    attn_types attn_upsample aux_logits avg_down b base_dim base_dims base_width basic bidirectional
    block_config block_reduce_first block_type bn_eps bn_momentum bn_size bottle_ratio
    bottleneck_width_ratio cardinality ch_div channel_attention channel_attn_v2 channel_multiplier
    channels class_token cls_attn_layers cls_ratio conv_bias conv_init conv_mlp conv_ratio cpe_act
    crop_scale crpe_window d2_scales deepen_factor depth depth_list depth_mult depth_multiplier
    depth_token_only depths dim dim_mul dims distillation distilled down_kernel_size down_op
    down_ops down_pad down_patch_size down_stride downsample downsample_block
    downsample_expand_ratios downsample_kernel_size downsample_padding downsample_ratio downsamples
    drop_block_rate drop_block_size drop_path_rate drop_rate dw_act_layer dynamic_img_pad
    dynamic_img_size embed_dim embed_dims embed_norm embed_norm_layer embed_proj_type
    enable_patch_interpolator encoder_pool eta expand_groups expand_ratio expansion_ratio
    extra_norm_period extra_norm_stage fc_act_layer fc_norm feature_dim ffn ffn_ratio final_chs
    final_norm first_stride fix_init fix_stem focal_levels focal_windows fused_conv fused_downsample
    global_att_blocks global_attn_indexes global_block_counts global_pool global_pos_size group
    groups growth_rate growth_rates head_bias head_dim head_fn head_hidden_size head_init_scale
    head_mul head_norm head_norm_first head_widths heads hidden_sizes img_scale img_size in_chans
    inc_sec inference_mode init_channels init_values initial_chs inner_dim inplanes input_3x3
    input_norm_layer intermediate_size is_downsample_block k_r k_sec kernel_size kernel_sizes
    kernels key_dim layer_scale layer_scale_init_value layer_scale_init_values layers
    layerscale_value legacy levels linear lkc_use_act local_conv_size local_mbconv_norm
    local_up_to_layer locality_strength ls_init_value mask_unit_attn mask_unit_size
    mbconv_expand_ratio memory_efficient merge_size mix_block_ratio mlp_bias mlp_layer mlp_ratio
    mlp_ratio_token_only mlp_ratios msfa_indices msfa_output_resolution multi_conv n_div neck_chans
    nlhb no_embed_class norm_eps norm_layer norm_layer_cl normalize_modulator num_blocks
    num_blocks_list num_classes num_features num_heads num_heads_inner num_heads_outer
    num_init_features num_kv_heads num_levels num_reg_tokens num_rnn_layers num_vit
    outlook_attention output_stride pad_type parallel_depth partial_dim patch_drop_rate patch_kernel
    patch_norm patch_padding patch_size patch_sizes patch_stride patchify_channels_last
    pconv_fw_type pool_include_prefix pool_size pooling_kernel_size pooling_scale pos_drop_rate
    pos_embed pos_embed_align_corners pos_embed_antialias pos_embed_ar_preserving
    pos_embed_grid_size pos_embed_interp_mode pos_embed_use_grid_sample position_embedding_size
    post_layers pre_norm preact pretrained_window_sizes proj_bias proj_drop_rate q_pool q_stride
    qk_dim qk_norm qkv_bias qkv_fused reduction ref_feat_shape reg_tokens rel_pos_dim rel_pos_type
    reparam replace_stem_pool repmixer_kernel_size res_scale_init_values rope_grid_indexing
    rope_grid_offset rope_jitter_coords rope_mrope_section rope_ref_feat_shape rope_rescale_coords
    rope_rotate_half rope_shift_coords rope_temperature rope_theta rope_type scale scale_attn_inner
    scale_attn_inner_norm scale_attn_norm scale_mlp scale_mlp_norm se_downsamples se_from_exp
    se_layer se_ratio sep_pos_embed sequential_attn serial_depths shared_rel_pos shortcut_root small
    small_kernels spatial_conv sr_ratios ssd_expand stages standardize state_dim stem_bias stem_chs
    stem_expand_ratio stem_hidden_dim stem_kernel_size stem_mid_norm stem_norm stem_size stem_stride
    stem_type stem_use_scale_branch stem_width strict_img_size stride strides swiglu_align_to
    swiglu_mlp token_mixers tokens_norm transformer_depths transformer_drop_path
    transition_compression_ratio types union use_abs_pos use_abs_pos_emb use_aux_head
    use_clipped_linears use_conv use_expand_proj use_fc_norm use_grn use_key_only_attn_mask use_lab
    use_layer_scale use_mix_token use_mlp_head use_msfa use_overlap_down use_pos_emb use_pos_embed
    use_post_norm use_post_norm_in_modulation use_post_transformer_norm use_pre_transformer_norm
    use_rel_pos use_rel_pos_bias use_rope use_rot_pos_emb use_shared_rel_pos_bias v2 version
    vit_stem weight_init widen_factor width width_factor width_list width_mult widths window_ratio
    window_size window_sizes window_spec with_fc wss zero_init_last
"""
ALLOWED = frozenset(_NAMES.split())


def check_model_args(arguments: Mapping[str, Any]) -> None:
    """Check that keyword arguments of `timm.create_model` describe an architecture, within reason.

    Raises:
        ValueError: If a name is not among those allowed, or its value is not plain or beyond
            the bounds.
    """
    for name, value in arguments.items():
        if name not in ALLOWED:
            raise ValueError(
                f"the model argument {_short(name)} is none of those that describe an architecture,"
                " such as img_size, pad_type or depths: names of files, downloads and switches of"
                " timm are never taken"
            )
        problem = _problem(value, MAX_CLASSES if name == "num_classes" else MAX_INTEGER)
        if problem is not None:
            raise ValueError(f"the model argument {name} = {_short(value)} {problem}")


def _problem(value: object, largest: int, nesting: int = 0) -> str | None:
    """Return what is wrong with the value of an argument, or None."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if abs(value) <= largest else f"lies beyond {largest:,}"
    if isinstance(value, float):
        return None if abs(value) <= MAX_FLOAT else f"lies beyond {MAX_FLOAT:,.0f}"
    if isinstance(value, str):
        return None if _WORD.fullmatch(value) else "is not a word of letters, digits, _, + and -"
    if isinstance(value, dict) and all(type(key) is int for key in value):
        value = [*value, *value.values()]  # how many heads have a window of a size, in CoaT
    if not isinstance(value, tuple | list):
        return f"is of type {type(value).__name__}, expected numbers, words or lists of them"
    if len(value) > MAX_LENGTH or nesting == MAX_NESTING:
        return f"has more than {MAX_LENGTH} entries or more than {MAX_NESTING} levels"
    problems = (_problem(each, largest, nesting + 1) for each in value)
    return next((problem for problem in problems if problem is not None), None)


def read_model_args(text: object) -> dict[str, Any]:
    """Return the arguments that a file holds as a Python literal of a dict or of pairs, checked.

    Raises:
        ValueError: If the text is none, or `check_model_args` refuses what it says.
    """
    if not isinstance(text, str):
        raise ValueError(f"model_args is of type {type(text).__name__}, expected a text")
    found = read_literal(text)
    try:
        arguments = dict(found)
    except (TypeError, ValueError):
        arguments = {None: None}
    if not all(isinstance(name, str) for name in arguments):
        raise ValueError(f"model_args is {_short(text)}, expected names with values")
    check_model_args(arguments)
    return arguments


def parse_model_args(arguments: Sequence[str]) -> dict[str, Any]:
    """Turn `["pad_type=same", "depths=[1, 1, 2, 1]"]` into keyword arguments.

    A value that is a Python literal is read as one, any other is a string.

    Raises:
        BackboneError: If an argument is not `name=value`, or `check_model_args` refuses it.
    """
    parsed: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise BackboneError(
                f"model argument {_short(argument)} is not of the form name=value",
                remedy="Write for example `--model-arg pad_type=same`.",
            )
        try:
            parsed[name] = read_literal(text)
        except ValueError:
            parsed[name] = text
    try:
        check_model_args(parsed)
    except ValueError as error:
        raise BackboneError(str(error), remedy="Correct or leave out `--model-arg`.") from error
    return parsed


def read_literal(text: str) -> Any:
    """Return the value of a Python literal.

    Raises:
        ValueError: If the text is none, or too long or too deep to be read safely.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"a text of {len(text):,} characters, expected {MAX_TEXT:,} at most")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{_short(text)} is not a Python literal") from error


def _short(value: object) -> str:
    """Return a value as it is written, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:60]}…"
