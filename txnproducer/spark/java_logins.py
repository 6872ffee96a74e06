"""Logins by Java's options that the producer does not read: client credentials, and MSK with IAM.

Why it exists: programs that change from Spark's own sink have these options. The producer takes an
object for each of the two, which options cannot carry.

Owns: which options mean such a login, and the provider of tokens that is made of them. Must not
know: how tokens are fetched, the producer's other settings.

Rules:
* An option that means such a login is used, or refused. None is left out in silence.
* A JAAS line holds a secret and never appears in a message.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from txnproducer.config._java_security import _JAAS_LINE, _jaas_options
from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.client_credentials import ClientCredentials
from txnproducer.spark.msk_tokens import MskTokens

PROVIDER_SETTING: Final = "sasl_oauth_token_provider"
_MECHANISM: Final = "sasl.mechanism"
_JAAS: Final = "sasl.jaas.config"
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_SCOPE: Final = "sasl.oauthbearer.scope"
_URLENCODE: Final = "sasl.oauthbearer.header.urlencode"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105 - a name
_HANDLERS: Final = ("sasl.login.callback.handler.class", "sasl.client.callback.handler.class")
_OAUTH_MODULE: Final = "OAuthBearerLoginModule"
_IAM_MODULE: Final = "IAMLoginModule"
# By their last part: some distributions ship them in shaded packages, and Kafka 4 has moved one.
_OAUTH_CLASSES: Final = ("OAuthBearerLoginCallbackHandler", "ClientCredentialsJwtRetriever")
_IAM_CLASSES: Final = ("IAMClientCallbackHandler", "IAMOAuthBearerLoginCallbackHandler")
_OF_CREDENTIALS: Final = (_URL, _SCOPE, _URLENCODE, _RETRIEVER, _ID, _SECRET)
_EXTENSION: Final = "extension_"
# Of IAMLoginModule, what has another meaning or none here: how Java logs and tries again.
_IAM_WITHOUT_EFFECT: Final = ("awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs")
_IAM_OPTIONS: Final = ("awsProfileName", "awsRoleArn", "awsRoleSessionName")
_SIGNER: Final = "aws_msk_iam_sasl_signer"
_NEEDS_SIGNER: Final = (
    "it needs the package aws-msk-iam-sasl-signer-python on the driver and on the executors (the"
    " extra `msk`)"
)
_REGION: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


def with_java_login(settings: Mapping[str, Any], bootstrap_servers: str) -> dict[str, Any]:
    """Return the producer's settings, with a token provider in place of Java's options for one.

    Args:
        settings: by Java's names, in lower case. None stands for one that is not given.
        bootstrap_servers: of the cluster; those of MSK name its region.

    Raises:
        InvalidConfigurationError: a value does not fit, is missing, or is given twice.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    module, options = _jaas(given)
    handlers = {given[name].rpartition(".")[2] for name in _HANDLERS if name in given}
    if module == _IAM_MODULE or handlers.intersection(_IAM_CLASSES):
        return _with_iam(settings, given, options, bootstrap_servers)
    mechanism = given.get(_MECHANISM, given.get(_MECHANISM.replace(".", "_")))
    means_credentials = module == _OAUTH_MODULE or not given.keys().isdisjoint(_OF_CREDENTIALS)
    if mechanism == "OAUTHBEARER" and means_credentials:
        return _with_credentials(settings, given, options)
    return dict(settings)


def _jaas(given: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the module and the options of a JAAS line, if it is one of these two modules."""
    match = _JAAS_LINE.fullmatch(given.get(_JAAS, ""))
    module = "" if match is None else match["module"].rpartition(".")[2]
    if match is None or module not in (_OAUTH_MODULE, _IAM_MODULE):
        return "", {}
    try:
        return module, _jaas_options(match["options"])
    except InvalidConfigurationError:
        raise InvalidConfigurationError(
            f'{_JAAS} with {module} cannot be read: its options must read name="value", with'
            ' spaces between them, a backslash before each " in a value, and a ; at the end'
        ) from None


# --- client credentials --------------------------------------------------------------------------


def _with_credentials(
    settings: Mapping[str, Any], given: Mapping[str, Any], jaas: dict[str, str]
) -> dict[str, Any]:
    _refuse_second_login(given)
    _check_classes(given, (*_HANDLERS, _RETRIEVER), _OAUTH_CLASSES)
    if _URL not in given:
        raise InvalidConfigurationError(
            f"{_URL} is missing: {_JAAS} names {_OAUTH_MODULE}, and its tokens come from there."
            " Give it, or give kafka.sasl_oauth_token_provider, and leave the JAAS line out"
        )
    options = dict(jaas)
    client_id = _one_of(given, _ID, options, "clientId")
    secret = _one_of(given, _SECRET, options, "clientSecret")
    scope = _one_of(given, _SCOPE, options, "scope")
    extra = tuple(
        (name.removeprefix(_EXTENSION), options.pop(name))
        for name in sorted(options)
        if name.startswith(_EXTENSION)
    )
    if options:
        raise InvalidConfigurationError(
            f"{_JAAS} has {', '.join(sorted(options))}: of {_OAUTH_MODULE} the options clientId,"
            " clientSecret, scope and extension_NAME are used; leave others out"
        )
    for name, value in ((_ID, client_id), (_SECRET, secret)):
        if not value:
            raise InvalidConfigurationError(
                f'{name} is missing: give it, or {_JAAS} with clientId="..." clientSecret="..."'
            )
    quotes = str(given.get(_URLENCODE, "false")).lower()
    if quotes not in ("true", "false"):
        raise InvalidConfigurationError(f"{_URLENCODE}={quotes!r}: must be true or false")
    provider = ClientCredentials(
        given[_URL], client_id, secret, scope, extra, is_quoted=quotes == "true"
    )
    return _with_provider(settings, provider)


def _one_of(given: Mapping[str, Any], name: str, jaas: dict[str, str], in_jaas: str) -> str:
    """Return an option's value, given by itself or in the JAAS line, or an empty text."""
    own, other = given.get(name), jaas.pop(in_jaas, None)
    if own is not None and other is not None and own != other:
        # Without the values: one of them is a secret.
        raise InvalidConfigurationError(
            f"{name} is given twice, and differs from {in_jaas} in {_JAAS}: leave out one of them"
        )
    return str(own if own is not None else other or "")


# --- MSK with IAM --------------------------------------------------------------------------------


def _with_iam(
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
    jaas: dict[str, str],
    bootstrap_servers: str,
) -> dict[str, Any]:
    _refuse_second_login(given)
    _check_classes(given, _HANDLERS, _IAM_CLASSES)
    unknown = sorted(set(jaas).difference(_IAM_OPTIONS, _IAM_WITHOUT_EFFECT))
    if unknown:
        raise InvalidConfigurationError(
            f"{_JAAS} has {', '.join(unknown)}: of {_IAM_MODULE} the options"
            f" {', '.join(_IAM_OPTIONS)} are used. Assume the role in a profile of AWS's"
            " configuration, and name that by awsProfileName"
        )
    profile, role, session = (jaas.get(name, "") for name in _IAM_OPTIONS)
    if importlib.util.find_spec(_SIGNER) is not None:
        provider = MskTokens(_region(bootstrap_servers), profile, role, session)
        return _with_provider(settings, provider)
    if profile or role:
        raise InvalidConfigurationError(f"{_JAAS} names a profile or a role: {_NEEDS_SIGNER}")
    if importlib.util.find_spec("botocore") is None:
        raise InvalidConfigurationError(f"a login with IAM: {_NEEDS_SIGNER}")
    # The mechanism of kafka-python, which signs for each broker by itself.
    return {**_without_login(settings), _MECHANISM: "AWS_MSK_IAM"}


def _region(bootstrap_servers: str) -> str:
    found = _REGION.search(bootstrap_servers)
    region = (
        found[1] if found else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    )
    if not region:
        raise InvalidConfigurationError(
            "a login with IAM needs the region of the cluster, and bootstrap.servers="
            f"{bootstrap_servers!r} does not name it: set AWS_REGION on the driver"
        )
    return region


# --- both ----------------------------------------------------------------------------------------


def _refuse_second_login(given: Mapping[str, Any]) -> None:
    if any(name.replace(".", "_") == PROVIDER_SETTING for name in given):
        raise InvalidConfigurationError(
            f"{PROVIDER_SETTING} is given, and so are Java's options for a login of that kind:"
            " leave out the one or the other"
        )


def _check_classes(
    given: Mapping[str, Any], names: tuple[str, ...], known: tuple[str, ...]
) -> None:
    for name in names:
        if name in given and given[name].rpartition(".")[2] not in known:
            raise InvalidConfigurationError(
                f"{name}={given[name]} is a Java class that has no counterpart here: known are"
                f" {', '.join(known)}. Give kafka.sasl_oauth_token_provider, the name of a"
                " provider in Python"
            )


def _with_provider(settings: Mapping[str, Any], provider: Any) -> dict[str, Any]:
    return {
        **_without_login(settings),
        _MECHANISM: "OAUTHBEARER",
        PROVIDER_SETTING: provider,
    }


def _without_login(settings: Mapping[str, Any]) -> dict[str, Any]:
    # The mechanism in the other spelling, too: it is set again.
    dropped = {_JAAS, *_HANDLERS, *_OF_CREDENTIALS, _MECHANISM.replace(".", "_")}
    return {name: value for name, value in settings.items() if name not in dropped}
